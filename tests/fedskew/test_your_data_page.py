"""docs/start/your-data.md, word for word: from a folder to a report."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "start" / "your-data.md"


@pytest.mark.slow
def test_the_page_leads_from_a_folder_to_a_report(tmp_path: Path) -> None:
    # A block under a mark `not run` is about files that only the reader has.
    fences = r"^([^\n]*)\n```bash\n(.*?)^```$"
    blocks = re.findall(fences, PAGE.read_text(), re.MULTILINE | re.DOTALL)
    commands = [block for above, block in blocks if not above.startswith("<!-- not run")]
    assert len(commands) == 3 and "fedskew report" in commands[-1]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ended = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", "\n".join(commands)],
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-3000:]
    assert "2 sites of column site are the clients" in (tmp_path / "answer.txt").read_text()
    page = (tmp_path / "report.html").read_text()
    assert "fedshift" in page and "ill" in page
