"""Names that were changed are gone: each stands in the table of aliases and in the CHANGELOG alone."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

ELSEWHERE = r"CHANGELOG\.md|tests/test_old_names\.py|tests/fixtures/.*"
"""Where every old name may stand: what changed, this table, and files that an older version wrote."""

WIRE = (
    r"data/renamed_settings\.py|pyproject\.toml|tests/fedskew/test_renamed_words\.py"
    r"|tests/error_sentences\.yaml|tests/server_app/defaults\.json|tests/golden/.*"
)
"""Where old words of settings may stand: the aliases and their tests. Run ids and files keep them."""

PLUGINS = r"server_app/plugins\.py|tests/server_app/test_plugins\.py"
"""Where old hooks of a variant may stand: a plugin that has one is told the new name."""

OLD_NAMES = {
    # client_app
    r"Asked\(|Known\(|ClientAnswer": "",
    r"\bAssignment\b": "",
    r"client_app[./](play|player|together|blob|incoming|scores|site_file)\b": "",
    r"\bclass (Player|Place|Unreadable|Incoming|Together)\b": "",
    r"\b(repeat_to_the_bit|keep_freed_memory|forget_all_but|measure_all)\b": "",
    r"\b(makes_idle)\b|\.breach\b|\bdef (pull|breach|reveals)\(self\)": PLUGINS,
    # strategies and server_app
    r"\b(converse|AnyNode|SiteNodes)\b|\bRefused\(": "",
    r"\bcore[./](checks|directory|movement|outcome)\b": "",
    r"\bclass (Outcome|Movement|Refused|Dealt|Lost|Parts|Trial|Breach|Tell)\b": "",
    r"server_app[./](dealt|round_line|writer|suitable_model|parts|own_method|contract)\b": "",
    r"\b(own_method|own_code|begin_anew|tell_lost|held_back)\b": "",
    r"\bdealt\b|\bDealt\b": "",
    # fedskew
    r"\b(doorway|fedskew[./]interrupt|fedskew[./]jobs)\b": "",
    r"\b(sweep[./](overview|machine)|cli[./](perform|choice))\b": "",
    r"\b(let_be_away|give_up|class (Gate|Absence|Shares|Standing))\b": "",
    r"federation[./](gate|absence|objects|traffic|control|readiness)\b": "",
    r"\breport[./](gather|levels|setup)\b|\bclass (Gathered|Measured)\b": "",
    r"\b(worth_trying|carry_out)\b": "",
    # site_agent, data and deploy
    r"site_agent[./](note|link|child)\b|\bclass (Note|Noting)\b": "",
    r"readers[./](belonging|who_tests|first_bytes|scale|conversions)\b": "",
    r"\b[Bb]elonging\b(?! to)|data/sources|data\.sources": "",
    r"faults[./](liars|absences|outcome)\b": "",
    r"\bdef (told|remember|recall|heed|introduce|tend)\b|\btold = ": r"tests/.*",
    r"\bdef look\((?!\))|\blook_soon\b|\.heard\[": r"tests/.*",
    r"\b(class Answer|alone_in)\b": "",
    # settings and commands
    r"\btested-on\b": WIRE + r"|tests/fedskew/test_selection\.py",
    r"\btested_on\b": WIRE,
    r"\bclients-together\b": WIRE
    + r"|docs/reference/(methods|run-files)\.md|tests/server_app/test_end_to_end\.py",
    r"\bclients_together\b": WIRE
    + r"|fedskew/flower/client\.py|tests/fedskew/flower/test_flower_errors\.py",
    r"\bweights-over\b": WIRE,
    r"\bmin-replies\b": WIRE + r"|docs/results/reliability\.md",
    r"\bmin_replies\b": "",
    r"--like\b": r"fedskew/cli/select\.py|" + WIRE,
    r"\bdata split\b(?! between)": r"fedskew/cli/data\.py|" + WIRE,
    r"\"data\", \"split\"": WIRE,
    r"(?<!-)--fresh\b": r"fedskew/cli/run\.py|" + WIRE,
    r"fedskew-site forget\b|\"forget\"": r"site_agent/cli\.py|tests/site_agent/test_command\.py",
    # words of an older style
    r"\b(play|plays|played|playing|player)\b": "",
}
"""By regular expression, the files that may hold it beside those of ELSEWHERE."""

PLANTED = [
    "from client_app.play import x",
    "self.makes_idle",
    "class Outcome:",
    "sources/belonging.py",
    "--set tested-on=test",
    "fedskew select --like runs",
    "sweep.overview",
    "`own_code`",
    "the node that plays it",
    "federation.gate",
    "told = json.loads(text)",
    'fedskew("data", "split", dataset)',
    "fedskew run paper-table --fresh",
    'fedskew_site("forget", run)',
]


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("this is no clone of the repository")
    found = {}
    for name in listed.stdout.splitlines():
        if re.fullmatch(ELSEWHERE, name) or not (ROOT / name).is_file():
            continue
        content = (ROOT / name).read_bytes()
        if b"\0" not in content:
            found[name] = content.decode("utf-8", "replace")
    return found


@pytest.mark.parametrize("old", OLD_NAMES)
def test_an_old_name_is_left_nowhere(old: str, texts: dict[str, str]) -> None:
    allowed = OLD_NAMES[old]
    left = []
    for file, text in texts.items():
        if re.search(old, text) and not re.fullmatch(allowed or "-", file):
            left.append(file)
    assert left == []


@pytest.mark.parametrize("old", [old for old, allowed in OLD_NAMES.items() if allowed])
def test_an_exception_is_needed(old: str, texts: dict[str, str]) -> None:
    assert any(re.search(old, text) for text in texts.values())


@pytest.mark.parametrize("text", PLANTED)
def test_a_planted_old_name_is_found(text: str) -> None:
    assert any(re.search(old, text) for old in OLD_NAMES)
