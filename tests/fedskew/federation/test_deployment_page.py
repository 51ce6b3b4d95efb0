"""docs/guides/deployment.md, word for word but for the port: from an empty folder to an exported model."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedskew.engines.processes import free_port

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "guides" / "deployment.md"
PORT = "localhost:18443"
"""The page's port; the test takes a free one, as the page's may be in use."""


def blocks(heading: str) -> list[str]:
    """Return the commands of a section."""
    section = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```bash\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_page_leads_from_an_empty_folder_to_a_model(tmp_path: Path) -> None:
    commands = blocks("On one machine, word for word")
    assert len(commands) == 3 and "fedskew export" in commands[-1]
    script = "\n".join(commands)
    assert PORT in script
    script = script.replace(PORT, f"localhost:{free_port()}")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    shell = subprocess.Popen(
        ["bash", "-e", "-c", script],
        cwd=tmp_path,
        env=os.environ | {"CLONE": str(ROOT), "PATH": path, "HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = shell.communicate(timeout=1700)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)
        raise
    finally:
        subprocess.run(
            [Path(sys.executable).parent / "fedskew", "federation", "down", "study"], cwd=tmp_path
        )
    assert shell.returncode == 0, said[-3000:]
    assert (tmp_path / "study-model" / "model.safetensors").exists(), said[-3000:]
