"""Every command block of README, docs/ and examples/ is run by a test, or says why it is not.

A block of commands or Python is one of two:

* run as it is written by a test of this file (RUN_HERE, EXECUTED), of another one (RUN_ELSEWHERE) or by `make demo`;
* marked `<!-- not run: REASON -->` on the line above its fence. Its commands are parsed, unless it has a program that
  CHECKS lacks: each must exist with its options, and its settings must make a run.
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
import torch
import typer
from fake_grid import FakeGrid
from flower_grid import CLIENTS, Net, client_data
from flwr.clientapp import ClientApp
from torchvision.models import efficientnet_b0

from benchmarks.__main__ import SUITE
from fedskew.cli.application import COMMANDS, loaded
from fedskew.cli.options import choose
from fedskew.experiments import entries_in
from fedskew.experiments.plan import runs, selected
from server_app.settings import defaults, parse, parse_texts
from site_agent.cli import application as site_application

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
SHELL = ("bash", "sh", "shell", "console")

RUN_ELSEWHERE = (
    "fedskew data export-sites digits sites --sites 2 ",
    "for site in site-0 site-1; do\n    cp",
    "fedskew federation run study",
    'python -c "import fedskew; print(',
    "import fedskew\n\nresult = fedskew.run(",
    "import numpy as np\n\nimport fedskew\n\ndraw",
    "import torch\n\nfrom fedskew.methods import Classifier",
    "import torch\n\nfrom fedskew.methods import CReFF",
    "# my_methods.py",
    "# temperature.py",
)
"""How the blocks begin that other files of tests run, which name their page."""

RUN_BY_CI = ("make demo    # installs", "fedskew run demo\nfedskew report demo")
"""How the blocks begin that `make demo` runs."""

RUN_HERE = {
    "docs/start/your-data.md": [
        "python - <<'PY'",
        "fedskew data check study/rows.csv | tee answer.txt",
        "COMMAND=$(tail -n 1 answer.txt)",
    ],
    "docs/start/quickstart.md": ["fedskew run --method fedavg,fedshift"],
    "docs/start/choosing-a-method.md": ["fedskew diagnose counts.csv"],
    "docs/guides/experiments.md": ["fedskew list experiments"],
    "docs/guides/running.md": ["fedskew run demo --dry-run"],
    "docs/guides/export.md": [
        "fedskew run --method creff",
        "fedskew data export-sites digits sites --sites 2\n",
    ],
    "docs/reference/data.md": ["fedskew data list"],
    "docs/reference/methods.md": ["fedskew run --set method=creff+creff-code"],
}
"""By page, how the blocks begin that test_the_commands_of_a_page_run runs, one after another."""

EXECUTED = ("from flwr.app import ArrayRecord", "from fedskew.methods import Method")
"""How the blocks of Python begin that tests of this file execute."""


@dataclass(frozen=True)
class Block:
    """A fenced block of commands or of Python."""

    page: Path
    line: int
    language: str
    text: str
    reason: str | None
    """Why it is not run, if a mark says so."""

    @property
    def is_run(self) -> bool:
        """Return whether a test runs this block as it is written."""
        here = [*RUN_HERE.get(self.name, ()), *EXECUTED]
        return self.text.startswith((*here, *RUN_ELSEWHERE, *RUN_BY_CI))

    @property
    def name(self) -> str:
        """Return the page's path from the root."""
        return self.page.relative_to(ROOT).as_posix()

    def __str__(self) -> str:
        return f"{self.name}:{self.line}"


def blocks_of(page: Path, text: str) -> Iterator[Block]:
    """Yield the blocks of commands and of Python on a page with this text."""
    for match in BLOCK.finditer(text):
        if match["language"] in (*SHELL, "python"):
            line = text.count("\n", 0, match.start()) + 1
            yield Block(page, line, match["language"], match["text"], match["reason"])


BLOCKS = [block for page in PAGES for block in blocks_of(page, page.read_text())]


# Commands


def simple_commands(text: str) -> list[list[str]]:
    """Return the words of each simple command of a shell script: no comments, here-documents or shell syntax."""
    without_documents = re.sub(
        r"<<\s*'?(\w+)'?([^\n]*)\n.*?^\1$", r"\2", text, flags=re.MULTILINE | re.DOTALL
    )
    commands: list[list[str]] = []
    for line in without_documents.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        commands.append([])
        for word in lexer:
            if set(word) <= set("();<>|&"):
                commands.append([])
            else:
                commands[-1].append(word)
    return [words for words in map(without_keywords, commands) if words]


KEYWORDS = {"do", "done", "until", "while", "if", "then", "else", "fi", "exec", "!", "{", "}"}


def without_keywords(words: list[str]) -> list[str]:
    """Return a command without the shell's keywords and assignments before it; nothing for a loop's head."""
    if words and words[0] == "for":
        return []
    while words and (words[0] in KEYWORDS or re.fullmatch(r"\w+=.*", words[0])):
        words = words[1:]
    return words


def parsed(command: click.Command, name: str, words: list[str]) -> dict[str, Any]:
    """Return the parameters that click reads from a command's words. Raises click's UsageError."""
    context = command.make_context(name, list(words))
    if not isinstance(command, click.Group):
        return context.params
    rest = [*context._protected_args, *context.args]
    _, below, rest = command.resolve_command(context, rest)
    assert below is not None
    return parsed(below, f"{name} {rest[0] if rest else ''}", rest)


def check_fedskew(words: list[str]) -> None:
    """Raise an error for a command, an option, a setting or an experiment that does not exist."""
    if words in (["--version"], ["--install-completion"]):
        return
    name, *rest = words
    assert name in COMMANDS, f"fedskew {name}: no such command"
    parameters = parsed(loaded(name), name, rest)
    settings = [one for one in parameters.get("settings") or () if one != "KEY=VALUE"]
    if name != "run":
        stated = parse_texts(settings)
        unknown = stated.keys() - defaults().keys()
        assert not unknown, f"no such setting: {unknown}"
        return
    options = {"results": parameters["results"]}
    names, file = parameters["names"] or [], parameters["experiments"]
    seeds = parameters["seed"] or (["0"] if names else [])  # one is enough to plan
    choice = choose(
        names, file, settings, parameters["method"] or [], seeds, options, need_data=False
    )
    cells = selected(choice.cells(), parameters["row"] or (), parameters["column"] or ())
    assert runs(cells[:1]) if choice.experiments else parse(choice.overrides)


def check_site(words: list[str]) -> None:
    """Raise an error for a command or an option that `fedskew-site` does not have."""
    parsed(typer.main.get_command(site_application), "fedskew-site", words)


def check_flower(words: list[str]) -> None:
    """Raise an error for an option that flwr does not have, or a key of the run config that the app does not have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # flwr's options, to typer
        from flwr.cli.app import app as flower_application
    parameters = parsed(typer.main.get_command(flower_application), "flwr", words)
    app = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    for text in parameters["run_config_overrides"] or ():
        stated = tomllib.loads(re.sub(r"\s+(?=[\w-]+=)", "\n", text))
        assert stated.keys() <= app.keys(), f"no such key: {stated.keys() - app.keys()}"


def check_make(words: list[str]) -> None:
    """Raise an error for a target that the Makefile does not have."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(words) <= set(targets), f"make {words}: no such target"


def check_python(words: list[str]) -> None:
    """Raise an error for a script, a module or a folder of tests that does not exist."""
    if words[:1] == ["-c"]:
        compile(words[1], "-c", "exec")
    elif words[:1] == ["-m"]:
        assert words[1] in ("venv", "pytest", "pip", "mkdocs") or is_module(words[1]), (
            f"{words[1]}: no such module"
        )
        if words[1] == "benchmarks":
            named = [word for word in words[2:] if re.fullmatch(r"[a-z][a-z0-9-]+", word)]
            assert set(named) <= SUITE.keys(), f"{named}: no such benchmark"
        for word in words[2:]:
            assert not word.startswith("tests/") or (ROOT / word).exists(), word
    else:
        assert (ROOT / words[0]).exists(), f"{words[0]}: no such script"


def is_module(name: str) -> bool:
    """Return whether `python -m NAME` runs a module of this repository."""
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


def check_nothing(words: list[str]) -> None:
    """Do nothing: the shell's own tools."""


CHECKS = {
    "fedskew": check_fedskew,
    "fedskew-site": check_site,
    "flwr": check_flower,
    "make": check_make,
    "python": check_python,
    "python3": check_python,
    **dict.fromkeys((".", "cd", "cp", "export", "git", "mkdir", "patch", "pip"), check_nothing),
}


def check(script: str) -> None:
    """Check every command of a script. Raises an error that names the command."""
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for words in simple_commands(script):
        program = words[0].rpartition("/")[2]
        assert program in CHECKS, f"{words[0]}: mark the block as not run, or add a check"
        try:
            CHECKS[program](words[1:])
        except (click.ClickException, ValueError, AssertionError) as error:
            message = error.message if isinstance(error, click.ClickException) else error
            raise AssertionError(f"{' '.join(words)}: {message}") from error


def programs_of(script: str) -> set[str]:
    """Return the names of the programs that a script calls."""
    return {words[0].rpartition("/")[2] for words in simple_commands(script)}


def is_parsed(block: Block) -> bool:
    """Return whether the commands of a block are checked: it is not run, and its programs are known."""
    if block.language not in SHELL or block.is_run:
        return False
    # A plan reads the federation's files, and the user's own modules.
    own = ("dataset=sites:", "my_methods:", "examples/more-methods")
    reads_file = any(word in block.text for word in own)
    return not reads_file and programs_of(block.text) <= CHECKS.keys()


PARSED = [block for block in BLOCKS if is_parsed(block)]


@pytest.fixture(scope="module")
def with_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the weights that pages call FILE."""
    folder = tmp_path_factory.mktemp("commands")
    torch.save(efficientnet_b0(weights=None).state_dict(), folder / "FILE")
    return folder


@pytest.mark.parametrize("block", PARSED, ids=str)
def test_the_commands_of_a_block_exist(
    block: Block, with_weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(with_weights)
    check(block.text)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("fedskew run demo --fast", "No such option"),
        ("fedskew train demo", "no such command"),
        ("fedskew run --set roundz=3", "roundz"),
        ("fedskew run creff-table1 --column nowhere", "nowhere"),
        ("cd a && fedskew-site check --offline", "No such option"),
        ("flwr run . --run-config 'rounds=3 epochs=1'", "no such key"),
        ("python scripts/nothing.py", "no such script"),
        ("kubectl get pods", "mark the block as not run"),
    ],
)
def test_a_wrong_command_is_found(script: str, message: str) -> None:
    with pytest.raises(AssertionError) as found:
        check(script)
    assert message in str(found.value)


def test_right_commands_pass() -> None:
    """The control of the test above."""
    check("fedskew run demo --dry-run && fedskew run --set rounds=3 --set alpha=1  # a comment")
    check("for site in a b; do (cd $site && fedskew-site check --online) & done; make demo")
    check("flwr run . --stream --run-config 'rounds=3 method=\"creff\"'\nfedskew report demo")


SPAN = re.compile(r"(?<!`)`(fedskew(?:-site)? [a-z][^`]*)`(?!`)")


def spans_of(text: str) -> list[str]:
    """Return the commands in the running text of a page."""
    without_blocks = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    spans = SPAN.findall(without_blocks)
    return [span.replace("\n", " ").replace("\\|", "|") for span in spans]


def wrong_options(span: str) -> list[str]:
    """Return the words of a command in running text that are no command or no option of it."""
    program, name, *rest = re.sub(r"[\[\]|]|\.\.\.", " ", span).split()
    if program == "fedskew":
        if name not in COMMANDS:
            return [name]
        command = loaded(name)
    else:
        command = typer.main.get_command(site_application)
        rest = [name, *rest]
    while isinstance(command, click.Group) and rest:
        word, *rest = rest
        if word.isupper() or word.startswith("-"):
            return []
        if word not in command.commands:
            return [word]
        command = command.commands[word]
    options = {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {
        "--help"
    }
    stated = [word.partition("=")[0] for word in rest if word.startswith("--")]
    return [word for word in stated if word not in options]


def wrong_spans(text: str) -> list[str]:
    """Return the commands in a page's running text that are none, or have an option that is none."""
    return [span for span in spans_of(text) if wrong_options(span)]


def test_commands_in_running_text_exist() -> None:
    wrong = {str(page.relative_to(ROOT)): wrong_spans(page.read_text()) for page in PAGES}
    assert not {page: spans for page, spans in wrong.items() if spans}


@pytest.mark.parametrize("name", ["experiments.md", "personal-models.md"])
def test_the_experiments_on_a_page_are_read(name: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guides" / name).read_text()
    (entries,) = [match["text"] for match in BLOCK.finditer(page) if match["language"] == "yaml"]
    (tmp_path / "mine.yaml").write_text(entries)
    assert entries_in(tmp_path / "mine.yaml")


# Blocks that are run


def shown(page: str, beginning: str) -> str:
    """Return the text of a page's fenced block, of any language, that begins so."""
    texts = [match["text"] for match in BLOCK.finditer((ROOT / page).read_text())]
    (text,) = [text for text in texts if text.startswith(beginning)]
    return text


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN_HERE)
def test_the_commands_of_a_page_run(page: str, tmp_path: Path) -> None:
    if page.endswith("choosing-a-method.md"):
        (tmp_path / "counts.csv").write_text(shown(page, "site,normal"))
        (tmp_path / "moments.csv").write_text(shown(page, "site,mean"))
    script = "\n".join(shown(page, beginning) for beginning in RUN_HERE[page])
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_flower_guide_s_code_trains() -> None:
    """The names that the page leaves to the reader's app are a small net, digits and four clients here."""
    app = ClientApp()
    names: dict[str, Any] = {
        "app": app,
        "Net": Net,
        "grid": FakeGrid(app, CLIENTS),
        "my_loader": lambda context: client_data(int(context.node_config["partition-id"])),
    }
    exec(shown("docs/guides/flower.md", EXECUTED[0]), names)
    deployed = names["strategy"].deployed["creff"]
    assert deployed.keys() == Net().state_dict().keys()


def test_the_plugin_guide_s_pair_is_a_method() -> None:
    from fedskew.methods import Method, ServerMethod, Variant

    names = {"MyVariant": Variant, "MyServer": ServerMethod}
    exec(shown("docs/guides/plugin.md", EXECUTED[1]), names)
    assert isinstance(names["PAIR"], Method)


def test_every_block_is_run_or_says_why_not() -> None:
    assert not [str(block) for block in BLOCKS if not block.is_run and block.reason is None]
    assert not [str(block) for block in BLOCKS if block.reason and len(block.reason) < 10]
    text = "<!-- not run: needs two hospitals -->\n```bash\nfedskew run x\n```\n```bash\nls\n```\n"
    assert [block.reason for block in blocks_of(ROOT, text)] == ["needs two hospitals", None]
