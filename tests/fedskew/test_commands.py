"""Every command: exit status, `--json`, one sentence for a wrong call; how `fedskew run` is asked and answers."""

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import click
import numpy as np
import psutil
import pytest
from rich.table import Table
from rich.text import Text

import fedskew as workbench
from fedskew.cli.application import COMMANDS, loaded
from fedskew.formatting import console

MINE = "--experiments experiments.yaml"
QUICK = "--engine inprocess --set rounds=1 --set local-steps=1 --set model=linear"
SUMMARY = [
    "run", "method", "rows", "rounds", "models", "failures", "hash", "partition-hash", "seconds-of-this-start",
]  # fmt: skip
REPORT = [
    "experiment", "title", "headline", "what-was-run", "warnings", "numbers", "claims", "assumed",
    "runs", "command",
]  # fmt: skip
DIAGNOSIS = [
    "of", "skews", "failing", "line", "remark", "without-samples", "statistics", "moments",
]  # fmt: skip
PLAN = ["run", "label", "model", "rounds", "left", "missing", "cost"]
GOOD = {
    "run": [
        (f"{QUICK} --results results --json", SUMMARY),
        (f"mine {MINE} {QUICK} --results results --json", SUMMARY),
        (f"mine {MINE} --dry-run --json", PLAN),
    ],
    "list": [
        ("methods --json", ["method", "what", "parts", "uploads beside the model", "paper"]),
        ("settings --json", ["key", "default", "meaning"]),
        ("models --json", ["model", "what"]),
        ("experiments --json", ["experiment", "what"]),
    ],
    "data check": [("own.csv", [])],
    "data export-sites": [("digits sites --sites 2", [])],
    "data list": [("--json", ["dataset", "classes", "input-shape", "there", "what"])],
    "data save-partition": [("partition.json --set clients=3", [])],
    "data show": [("--json", ["hash", "classes", "counts"])],
    "diagnose": [("counts.csv --json", DIAGNOSIS)],
    "report": [("--results trained --json", REPORT)],
    "keep": [("papers --results results --records kept", [])],
    "export": [("RUN --output model", [])],
    "predict": [("exported images.npz --json", ["predictions", "metrics"])],
    "federation new": [
        ("study --name study --address example.org:9092 --classes a,b --input-shape 1x8x8", []),
    ],
    "federation down": [("study", [])],
}
"""By command: good calls, and the keys that its JSON has, or each element of it; without keys, it prints text."""
ELSEWHERE = {
    "select",
    *(f"federation {name}" for name in (
        "add", "agree", "alive", "renew", "run", "serve", "status", "submit", "up",
    )),
}  # fmt: skip
"""Commands whose good calls take minutes, kept records, or a federation: below, in report/ and in federation/."""
BAD = {
    "run": "--set rouns=3",
    "list": "experiments --experiments no.yaml",
    "data check": "no.csv",
    "data export-sites": "no.csv sites",
    "data list": "--nothing",
    "data save-partition": "partition.json --set clients=ten",
    "data show": "--set clients=ten",
    "diagnose": "no-experiment",
    "select": "--minutes 1 --target best",
    "report": "no-experiment",
    "keep": "demo",
    "export": "no-run",
    "predict": "no-model images.npz",
    "federation add": "nowhere north KEY",
    "federation agree": "nowhere",
    "federation alive": "nowhere",
    "federation down": "study --nothing",
    "federation new": "study --name study --address nobody --classes a,b --input-shape 1x8x8",
    "federation renew": "nowhere",
    "federation run": "nowhere",
    "federation serve": "nowhere",
    "federation status": "nowhere",
    "federation submit": "nowhere",
    "federation up": "nowhere",
}
"""By command: a call that is refused."""


def all_commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command that help shows, with its words."""
    for name in COMMANDS:
        command = loaded(name)
        if not isinstance(command, click.Group):
            yield name, command
            continue
        for word, below in command.commands.items():
            if not below.hidden:
                yield f"{name} {word}", below


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with the folder `trained` of a finished run, its exported model, and inputs."""
    folder = tmp_path_factory.mktemp("trained")
    settings = {"rounds": 1, "local-steps": 1, "model": "linear"}
    result = workbench.run({**settings, "results": str(folder / "trained")})
    result.export(folder / "exported")
    images = np.zeros((3, 8, 8), np.uint8)
    np.savez(folder / "images.npz", images=images, labels=np.arange(3))
    (folder / "run.txt").write_text(str(result.folder))
    rows = [f"{number},{number % 7},{'ab'[number % 2]}" for number in range(60)]
    (folder / "own.csv").write_text("\n".join(["age,weight,label", *rows]))
    (folder / "counts.csv").write_text("site,a,b\nx,10,90\ny,90,10\n")
    entry = {"title": "Mine", "methods": ["fedavg"], "seeds": [0]}
    (folder / "experiments.yaml").write_text(json.dumps({"mine": entry}))
    return folder


@pytest.fixture
def room(trained, tmp_path, monkeypatch):
    """A working directory with the inputs of all calls."""
    for path in trained.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_has_a_good_and_a_bad_call():
    commands = dict(all_commands())
    assert commands.keys() == BAD.keys() == {*GOOD, *ELSEWHERE}
    for name, calls in GOOD.items():
        options = {option for parameter in commands[name].params for option in parameter.opts}
        assert ("--json" in options) == any("--json" in words for words, _ in calls), name


@pytest.mark.parametrize(("command", "calls"), GOOD.items(), ids=list(GOOD))
def test_a_good_call_ends_with_0_and_prints_json_where_it_is_asked_to(
    command, calls, room, trained, fedskew
):
    for words, keys in calls:
        words = words.replace("RUN", (trained / "run.txt").read_text())
        status, output, errors = fedskew(*command.split(), *shlex.split(words))
        assert status == 0, errors
        if "--json" in words:
            printed = json.loads(output)
            shown: dict[str, Any] = printed if isinstance(printed, dict) else dict(*printed[:1])
            assert list(shown) == keys
        else:
            assert output


@pytest.mark.parametrize(("command", "words"), BAD.items(), ids=list(BAD))
def test_a_bad_call_ends_with_2_and_one_sentence(command, words, room, fedskew):
    status, output, errors = fedskew(*command.split(), *words.split())
    assert (status, output) == (2, "")
    if "--nothing" in words:  # it has no other option or argument that could be wrong
        assert "No such option" in errors
    else:
        assert errors.startswith("fedskew: ") and errors.count("\n") == 1


@pytest.mark.slow
def test_a_selection_ends_with_what_to_take(tmp_path, fedskew):
    words = "select --minutes 20 --method fedshift --set model=mlp-bn --set train-images=200 --set rounds=1"
    words += " --set local-epochs=1 --set min-samples=5 --results"
    status, output, errors = fedskew(*words.split(), tmp_path)
    assert status == 0, errors
    (file,) = tmp_path.glob("select-*.json")
    result = json.loads(file.read_text())
    last = result["lines"][-1]
    assert last.startswith(f"take {result['take']['method']} (") and last in output
    stated = [json.loads(path.read_text())["settings"] for path in tmp_path.glob("*/settings.json")]
    assert {run["evaluate-on"] for run in stated} == {"validation"}, "the test set is never read"
    assert {run["seed"] for run in stated} == {0, 1, *range(100, 110)}


CALLED = """
import contextlib, io, json, sys
from fedskew.cli.main import main
ended = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["fedskew", *words]
    printed = io.StringIO()
    status = 0
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
        try:
            main()
        except SystemExit as error:
            status = error.code
    ended.append([status, printed.getvalue(), sorted({"torch", "flwr"} & {*sys.modules})])
print(json.dumps(ended))
"""
MISTAKES = {
    "run --set dataset=csv:no.csv": "no.csv: there is no such file or folder",
    "run --set weights=no.safetensors": "weights = 'no.safetensors': there is no such file",
    "run --set alpha=-1": "alpha = -1.0",
    "run --method fedshfit": "did you mean fedshift",
    "report quikc": "did you mean quick",
    "data check here.csv --set test-fold=x": "test-fold = 'x'",
    "run --row fedavg": "--row = ['fedavg']: is for several runs",
    "select --minutes 1 --set results=kept": "results = 'kept': is stated by --results",
}
"""Command lines, each with words of the sentence that refuses it."""


def test_help_and_a_mistake_need_neither_torch_nor_flwr(tmp_path):
    (tmp_path / "here.csv").write_text("age,label\n1,a\n2,b\n")
    good = ["list methods", "list experiments", *(f"{name} --help" for name in COMMANDS)]
    lines = [*good, *MISTAKES]
    words = [sys.executable, "-c", CALLED, json.dumps([line.split() for line in lines])]
    ended = subprocess.run(words, cwd=tmp_path, stdout=subprocess.PIPE, check=True)
    for line, (status, printed, modules) in zip(lines, json.loads(ended.stdout), strict=True):
        assert modules == [] and status == (2 if line in MISTAKES else 0), (line, printed)
        assert MISTAKES.get(line, "") in printed, line
    assert [file.name for file in tmp_path.iterdir()] == ["here.csv"]


def test_a_mistyped_command_is_asked_about_once(fedskew):
    """click names the nearest command itself from 8.4 on, and typer did so again."""
    for words, nearest in ((["reprt"], "'report'"), (["data", "lst"], "'list'")):
        status, _, complaint = fedskew(*words)
        assert status == 2
        assert complaint.count("Did you mean") == 1 and complaint.count(nearest) == 1


def test_the_version_is_the_installed_one(fedskew):
    assert fedskew("--version") == (0, f"fedskew {version('fedskew')}\n", "")


def test_a_run_prints_rounds_table_and_folder_and_is_not_repeated_unless_asked(tmp_path, fedskew):
    words = ["run", *QUICK.split(), "--set", "method=creff", "--results", tmp_path]
    words += ["--set", "creff.head-steps=1"]
    status, output, errors = fedskew(*words)
    assert status == 0, errors
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    for word in ("round   1/1", "fedavg", "creff", "balanced", str(folder)):
        assert word in output
    left = {file.name for file in folder.iterdir()}
    assert {"settings.json", "rounds.jsonl", "summary.json", "checkpoint.safetensors"} <= left
    assert "finished earlier" not in output and "finished earlier" in fedskew(*words)[1]
    assert "finished earlier" not in fedskew(*words, "--overwrite")[1]


@pytest.mark.parametrize("seeds", ["0", "3,4"])
def test_an_experiment_ends_with_the_text_of_its_report(room, fedskew, seeds):
    words = ["mine", "--results", "results", *QUICK.split()[2:]]
    words_of_run = [*words, *MINE.split()]
    status, output, errors = fedskew("run", *words_of_run, "--engine", "inprocess", "--seed", seeds)
    assert status == 0, errors
    entry = json.loads((room / "experiments.yaml").read_text())
    entry["mine"]["seeds"] = [int(seed) for seed in seeds.split(",")]
    (room / "same.yaml").write_text(json.dumps(entry))
    reported = fedskew("report", *words, "--experiments", "same.yaml")[1]
    assert reported.startswith("Mine") and output.endswith(reported)


def test_papers_without_any_data_set_are_refused(tmp_path, fedskew):
    words = ["--records", tmp_path, "--set", f"data-root={tmp_path}", "--results", tmp_path]
    status, _, errors = fedskew("run", "papers", "--dry-run", *words)
    assert status == 2 and "no data set of these runs is in data-root: " in errors


def test_runs_that_fail_say_why_and_exit_with_1(tmp_path, fedskew):
    words = ["--set", "learning-rate=1e38", "--results", tmp_path]
    status, _, errors = fedskew("run", "--seed", "0,1", *QUICK.split(), *words)
    assert status == 1 and errors.startswith("fedskew: 2 of 2 runs failed")
    assert "diverged in round 1: " in errors.splitlines()[-1]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("method=feddf", "holdout-per-class = 0"),
        ("method=fedshift+reweighting", "class prior"),
        ("dataset=npz:forty.npz classes=10 input-shape=1x8x8 clients=50", "40"),
        ("dataset=mnist data-root=empty", "download"),
        ("results=forty.npz/below", "cannot be written"),
    ],
)
def test_bad_settings_are_one_sentence_before_any_engine_starts(
    tmp_path, monkeypatch, fedskew, settings, words
):
    monkeypatch.chdir(tmp_path)
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    labels = np.arange(40) % 10
    test = {"test_images": 255 - images, "test_labels": labels}
    np.savez("forty.npz", train_images=images, train_labels=labels, **test)
    pairs = [word for setting in settings.split() for word in ("--set", setting)]
    status, _, errors = fedskew("run", "--engine", "workers", *pairs)
    assert (status, errors.count("\n")) == (2, 1)
    assert errors.startswith("fedskew: ") and words in errors


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--seed 0,1 --seed 1", "--seed = '0,1,1': must state each once"),
        ("--seed 0,00", "--seed = '0,00': must state each once"),
        ("--seed 0,x", "--seed = 'x': must be integers"),
        ("--seed 0 --set seed=1", "--seed = '0': --set states it as well"),
        ("demo --method fedavg", "does not go with experiments"),
        (
            "fails --set rounds=-1",
            "fails-fedshift-one-class: rounds = -1: must be at least 0 and at most 1000000",
        ),
        ("--jobs 2", "--jobs = 2: is for several runs"),
        ("--workers -1", "-1 is not in the range x>=0."),
        ("--results=", "results = '': must name a folder"),
    ],
)
def test_an_option_that_would_be_dropped_or_is_out_of_range_is_refused(
    fedskew, words, sentence, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # where --results "" would be
    for more in ([], ["--dry-run"]):
        status, _, errors = fedskew("run", *words.split(), *more)
        assert status == 2 and sentence in errors
    assert not list(tmp_path.iterdir())


def test_a_folder_where_a_file_belongs_and_the_other_way_round(tmp_path, fedskew):
    """Whatever reads or writes it, one sentence names it."""
    folder, file = tmp_path / "folder.npz", tmp_path / "file"
    folder.mkdir()
    (folder / "something").write_text("")
    file.write_text("")
    run = ["run", *QUICK.split(), "--set"]
    own = ["classes=2", "--set", "input-shape=1x8x8", "--set"]
    for words, place in (
        ([*run, f"partition-file={folder}"], folder),
        ([*run, *own, f"dataset=npz:{folder}"], folder),
        (["data", "check", folder], folder),
        ([*run, *own, f"dataset=folder:{file}"], file),
        (["predict", file, file], file),
        (["report", "--results", file], file),
    ):
        status, _, errors = fedskew(*words)
        assert status == 2 and errors.count("\n") == 1 and str(place) in errors, words


def test_methods_and_seeds_make_an_experiment_on_the_spot(fedskew, tmp_path):
    words = "--method fedavg,tau-norm --method iwds --seed 0,2 --set resampling.decay=0.5"
    plan = fedskew("run", *words.split(), "--results", tmp_path, "--dry-run", "--json")[1]
    labels = [run["label"] for run in json.loads(plan)]
    assert len(labels) == 4 and sum(label.startswith("iwds") for label in labels) == 2


def test_a_module_of_the_user_s_that_is_called_data(tmp_path):
    """The command line finds FedSkew's own; a script, which may mean its own, is told in one sentence."""
    (tmp_path / "data.py").write_text("SCANS = 3\n")
    python = [sys.executable, "-m", "fedskew", "list", "experiments"]
    listed = subprocess.run(python, cwd=tmp_path, capture_output=True, text=True)
    assert listed.returncode == 0 and "demo-tail" in listed.stdout, listed.stderr
    script = [sys.executable, str(tmp_path / "script.py")]
    (tmp_path / "script.py").write_text("import fedskew\n")
    refused = subprocess.run(script, capture_output=True, text=True)
    assert f"ImportError: {tmp_path / 'data.py'} has the name of FedSkew's" in refused.stderr


@pytest.mark.slow
def test_a_killed_run_leaves_no_worker_and_the_same_command_ends_the_same(tmp_path):
    words = [sys.executable, "-m", "fedskew", "run", "--workers", "2", "--json"]
    words += ["--set", "rounds=20", "--set", "local-epochs=1"]
    command = [*words, "--engine", "workers", "--results", str(tmp_path / "killed")]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list((tmp_path / "killed").glob("*/rounds.jsonl")):
        assert running.poll() is None, "the run ended before its first round"
        time.sleep(0.02)
    children = psutil.Process(running.pid).children(recursive=True)
    assert len(children) >= 2
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert not psutil.wait_procs(children, timeout=60)[1]
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "resuming after round" in again.stderr
    command = [*words, "--engine", "inprocess", "--results", str(tmp_path / "whole")]
    whole = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(again.stdout)["hash"] == json.loads(whole.stdout)["hash"]


def test_control_characters_are_written_as_text(capsys, fedskew):
    """A class, a site or a file may be called by what clears a terminal, or worse."""
    table = Table("class")
    table.add_row(Text("ill\x1b[2J"))
    console().print("first\nsecond\x1b]0;title\x07")
    console().print(table)
    printed = capsys.readouterr().out
    assert "first\nsecond\\x1b]0;title" in printed and "ill\\x1" in printed
    status, _, errors = fedskew("diagnose", "\x1b[2Jnowhere")
    assert status == 2 and "\\x1b[2Jnowhere" in errors
    assert "\x1b" not in printed + errors and "\x07" not in printed + errors


def test_names_are_text_whatever_they_hold(tmp_path, fedskew):
    """Rich would read a class [/b] as the end of bold, which is a traceback, and drop [red]."""
    draws, labels = np.random.default_rng(0), np.arange(40) % 3
    images = draws.integers(0, 256, (40, 8, 8), np.uint8)
    folder = tmp_path / "[/b] :smile:"
    folder.mkdir(parents=True)
    split = {
        "train_images": images,
        "train_labels": labels,
        "test_images": 255 - images,
        "test_labels": labels,
    }
    np.savez(folder / "own.npz", **split)
    stated = [
        f"dataset=npz:{folder}/own.npz",
        "classes=[/b],[red],:smile:",
        "input-shape=1x8x8",
        "model=mlp-bn",
    ]
    stated += ["rounds=1", "clients=2", "min-samples=5", "alpha=1", f"results={folder}"]
    words = [word for text in stated for word in ("--set", text)]
    status, output, errors = fedskew("run", "--engine", "inprocess", *words)
    assert status == 0, errors
    output += fedskew("report", "--verbose", "--results", folder)[1]
    assert "[/b]" in output and "[red]" in output and ":smile:" in output and str(folder) in output
