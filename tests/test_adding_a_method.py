"""docs/adding_a_method.md shows FedLC's whole diff: its lines are in the sources, and a file is all it takes."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHOWN = (ROOT / "docs" / "adding_a_method.md").read_text()


def added() -> dict[str, str]:
    """Return the lines that the shown diff adds to each file."""
    files: dict[str, str] = {}
    for part in SHOWN.partition("```diff\n")[2].partition("```")[0].split("+++ b/")[1:]:
        name, *lines = part.splitlines()
        files[name] = "".join(f"{line[1:]}\n" for line in lines if line.startswith("+"))
    return files


def test_the_shown_diff_is_what_the_sources_hold() -> None:
    files = added()
    assert sorted(files) == ["client_app/variants/logit_calibration.py", "docs/methods.md", "server_app/methods.py"]
    for name, lines in files.items():
        text = (ROOT / name).read_text()
        assert lines == text if name.startswith("client_app") else lines in text
        assert lines.count("\n") == 1 or name.startswith("client_app")


def test_a_file_in_the_folder_is_found(tmp_path: Path) -> None:
    package = tmp_path / "parts"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "mine.py").write_text(
        "from client_app.client import Variant\n"
        "class Mine(Variant):\n    name = 'mine'\n"
        "class Nameless(Variant):\n    pass\n"
    )
    script = (
        "import parts\nfrom client_app.client import Variant\nfrom client_app.discovery import parts_in\n"
        "print(list(parts_in(parts, Variant)))"
    )
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{script}"]
    told = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert told == "['mine']\n"
