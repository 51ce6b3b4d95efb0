"""The command line as a user meets it: exit status, one sentence for bad input, a table, JSON, Ctrl-C."""

import json
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import psutil
import pytest
from command_line import FedSkew

from fedskew.cli.application import COMMANDS, loaded
from fedskew.cli.run_selection import Choice, choose
from fedskew.experiments.plan import runs

QUICK = ["--engine", "inprocess", "--set", "rounds=2", "--set", "local-steps=2"]


def test_what_computes_nothing_loads_neither_torch_nor_flwr() -> None:
    code = (
        "import sys; from fedskew.cli.application import application\n"
        "for words in (['--help'], ['list', 'methods']): application(words, standalone_mode=False)\n"
        "print(sorted({'torch', 'flwr', 'numpy'} & set(sys.modules)))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "Usage" in printed and "creff-code" in printed and printed.endswith("[]\n")


@pytest.mark.parametrize(
    ("words", "nearest"),
    [(["reprt"], "'report'"), (["data", "lst"], "'list'"), (["federation", "statu"], "'status'")],
)
def test_a_mistyped_command_is_asked_about_once(
    words: list[str], nearest: str, fedskew: FedSkew
) -> None:
    """click names the nearest command itself from 8.4 on, and typer did so again."""
    status, _, complaint = fedskew(*words)
    assert status == 2
    assert complaint.count("Did you mean") == 1 and complaint.count(nearest) == 1


def test_a_mistyped_command_is_answered_without_torch() -> None:
    mistyped = {
        "run --set lerning-rate=1": "did you mean learning-rate",
        "run quick --set lerning-rate=1": "did you mean learning-rate",
        "run --method fedshfit": "did you mean fedshift",
        "run --set method=fedbn+fedshfit": "did you mean fedshift",
        "run quikc": "did you mean quick",
        "run --seed 0,x": "must be an integer",
        "run --jobs 2": "is for several runs",
        "run --cluster nobody:1": "is for several runs",
        "report quikc": "did you mean quick",
        "report --set lerning-rate=1": "did you mean learning-rate",
    }
    code = (
        "import sys; from data import SettingError; from fedskew.cli.application import application\n"
        f"for words in {list(mistyped)}:\n"
        "    try: application(words.split(), standalone_mode=False)\n"
        "    except SettingError as error: print(error)\n"
        "application(['list', 'experiments'], standalone_mode=False)\n"
        "print(sorted({'torch', 'flwr'} & set(sys.modules)))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for line, words in zip(printed, mistyped.values(), strict=False):
        assert words in line
    assert printed[-1] == "[]"


def test_the_overview_says_of_each_command_what_its_own_help_says() -> None:
    for name, (_, line) in COMMANDS.items():
        assert (loaded(name).help or "").split("\n\n")[0] == line


def test_the_version_is_the_installed_one(fedskew: FedSkew) -> None:
    assert fedskew("--version") == (0, f"fedskew {version('fedskew')}\n", "")


@pytest.mark.parametrize(
    ("words", "marked"),
    [
        (("--help",), ("GPUs (device = cuda)", "run --cluster", "macOS")),
        (("run", "--help"), ("machines (experimental)", "GPUs are experimental")),
    ],
)
def test_what_nobody_has_tried_is_marked_experimental(
    words: tuple[str, ...], marked: tuple[str, ...], fedskew: FedSkew
) -> None:
    status, output, _ = fedskew(*words)
    shown = " ".join(output.replace("│", " ").split())
    assert status == 0 and "xperimental" in shown
    for name in marked:
        assert name in shown


def test_a_command_line_without_words_names_a_first_step(fedskew: FedSkew) -> None:
    _, output, errors = fedskew()
    assert "First steps: `fedskew run demo`" in output + errors
    assert "Experimental" in output + errors
    assert choose(["demo"], None, [], [], [], {}).cells(), "the step exists"


@pytest.mark.parametrize(
    ("words", "proposals"),
    [
        ("fedskew r", ["run", "report"]),
        ("fedskew data sh", ["show"]),
        ("fedskew run demo-m", ["demo-missing", "demo-missing-converged"]),
        ("fedskew report demo-m", ["demo-missing", "demo-missing-converged"]),
        ("fedskew run --set learning-rate-decay-", ["learning-rate-decay-every="]),
        ("fedskew select --set overwrite=", ["overwrite=true", "overwrite=false"]),
        ("fedskew run --method fedavg,creff-", ["fedavg,creff-code"]),
        ("fedskew run no-such-experiment", []),
    ],
)
def test_a_shell_is_proposed_what_goes_on_so(
    fedskew: FedSkew, monkeypatch: pytest.MonkeyPatch, words: str, proposals: list[str]
) -> None:
    monkeypatch.setenv("_FEDSKEW_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    status, output, errors = fedskew()
    assert (status, output.split(), errors) == (0, proposals, "")


def test_the_completion_of_a_shell_can_be_shown(
    fedskew: FedSkew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    status, output, _ = fedskew("--show-completion", "bash")
    assert status == 0 and "_FEDSKEW_COMPLETE=complete_bash" in output


def test_a_module_of_the_user_s_that_is_called_data(tmp_path: Path) -> None:
    """The command line finds FedSkew's own; a script, which may mean its own, is told in one sentence."""
    (tmp_path / "data.py").write_text("SCANS = 3\n")
    python = [sys.executable, "-m", "fedskew", "list", "experiments"]
    listed = subprocess.run(python, cwd=tmp_path, capture_output=True, text=True)
    assert listed.returncode == 0 and "demo-tail" in listed.stdout, listed.stderr
    (tmp_path / "script.py").write_text("import fedskew\n")
    refused = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True
    )
    sentence = (
        f"ImportError: {tmp_path / 'data.py'} has the name of FedSkew's package 'data': rename"
    )
    assert sentence in refused.stderr
    (tmp_path / "data.py").rename(tmp_path / "scans.py")
    control = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True)
    assert control.returncode == 0


def test_a_run_prints_rounds_table_and_folder(tmp_path: Path, fedskew: FedSkew) -> None:
    status, output, _ = fedskew("run", *QUICK, "--set", "method=creff", "--results", tmp_path)
    assert status == 0
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    for words in ("round   1/2", "round   2/2", "fedavg", "creff", "balanced", str(folder)):
        assert words in output
    left = {file.name for file in folder.iterdir()}
    assert {"settings.json", "rounds.jsonl", "summary.json", "checkpoint.safetensors"} <= left


def test_json_is_all_that_stdout_gets(tmp_path: Path, fedskew: FedSkew) -> None:
    status, output, _ = fedskew("run", *QUICK, "--json", "--results", tmp_path, "--seed", "3")
    assert status == 0
    summary = json.loads(output)
    assert summary["rounds"] == 2
    assert "seed3" in summary["run"]


def test_a_finished_run_is_not_repeated_unless_asked(tmp_path: Path, fedskew: FedSkew) -> None:
    skipped = []
    for more in ([], [], ["--overwrite"]):
        status, words, _ = fedskew("run", *QUICK, "--results", tmp_path, *more)
        assert status == 0
        skipped.append("finished earlier" in words)
    assert skipped == [False, True, False]


@pytest.fixture
def own_data(tmp_path: Path) -> Path:
    """Three npz files: 40 images, a label that does not exist, and no labels at all."""
    draw = np.random.default_rng(0)
    images, labels = draw.integers(0, 256, (40, 8, 8), dtype=np.uint8), np.arange(40) % 10
    np.savez(
        tmp_path / "forty.npz",
        train_images=images,
        train_labels=labels,
        test_images=255 - images,
        test_labels=labels,
    )
    np.savez(
        tmp_path / "ten.npz",
        train_images=images,
        train_labels=labels + 1,
        test_images=images,
        test_labels=labels,
    )
    np.savez(tmp_path / "bare.npz", train_images=images, test_images=images)
    return tmp_path


OWN = ["classes=10", "input-shape=1x8x8"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["roundz=3"], ["roundz", "did you mean rounds"]),
        (["rounds=many"], ["rounds", "many", "integer"]),
        (["alpha=0"], ["alpha = 0.0", "greater than 0"]),
        (["method=fedbn"], ["model", "small-cnn", "batch norm"]),
        (["method=feddf+fedbe"], ["feddf and fedbe", "combine"]),
        (["method=feddf"], ["holdout-per-class = 0", "feddf"]),
        (["method=fedshift+reweighting"], ["logit-shift and reweighting", "class prior"]),
        (["dataset=npz:forty.npz", *OWN, "clients=50"], ["50", "40"]),
        (["dataset=npz:ten.npz", *OWN], ["ten.npz", "10"]),
        (["dataset=npz:bare.npz", *OWN], ["bare.npz", "train_labels"]),
        (["dataset=folder:nowhere", *OWN], ["nowhere"]),
        (["dataset=mnist", "data-root=empty"], ["mnist", "empty", "download"]),
        (["dataset=mnits"], ["mnits", "mnist"]),
        (["dataset=./ten.npz"], ["no data set is called so; did you mean 'npz:./ten.npz'?"]),
        (["dataset=/data/scans"], ["did you mean 'folder:/data/scans'?"]),
        (["lr=0.1"], ["lr = '0.1': there is no such setting; did you mean learning-rate?"]),
        (["rounds=1", "rounds=2"], ["rounds = 2: is stated twice"]),
        (["method=fedavg,iwds"], ["several are stated as `--method fedavg,iwds`: a run of each"]),
        (["seed=0,1"], ["several are stated as `--seed 0,1`: a run of each"]),
        (["results=forty.npz/below"], ["results", "forty.npz", "cannot be written"]),
    ],
)
@pytest.mark.parametrize("engine", ["inprocess", "ray"])
def test_bad_input_is_one_sentence_and_exit_status_2(
    own_data: Path,
    fedskew: FedSkew,
    monkeypatch: pytest.MonkeyPatch,
    settings: list[str],
    words: list[str],
    engine: str,
) -> None:
    """Also for Ray: what is wrong is said before Ray starts."""
    monkeypatch.chdir(own_data)
    pairs = [word for setting in settings for word in ("--set", setting)]
    status, _, errors = fedskew("run", "--engine", engine, *pairs)
    assert status == 2
    assert errors.count("\n") == 1
    assert errors.startswith("fedskew: ")
    for word in words:
        assert word in errors


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--results", "a", "--results", "b"], "--results is given 2 times and counts once"),
        (["--seed", "0,1", "--seed", "1"], "fedskew: --seed = '0,1,1': must state each once"),
        (
            ["--seed", "0,x"],
            "fedskew: --seed = 'x': must be an integer, or several separated by commas",
        ),
        (["--seed", "0", "--set", "seed=1"], "fedskew: --seed = '0': --set states it as well"),
        (
            ["--method", "fedavg,,iwds"],
            "fedskew: --method = 'fedavg,,iwds': must be values separated by commas",
        ),
        (
            ["demo", "--method", "fedavg"],
            "does not go with experiments, which name their methods themselves",
        ),
        (
            ["fails", "--set", "rounds=-1"],
            "fedskew: fails-fedshift-one-class: rounds = -1: must be 0 to 1000000",
        ),
    ],
)
def test_an_option_that_would_be_dropped_is_refused(
    fedskew: FedSkew, words: list[str], sentence: str
) -> None:
    status, _, errors = fedskew("run", *words, "--dry-run")
    assert status == 2 and sentence in errors


def test_methods_and_seeds_make_an_experiment_on_the_spot() -> None:
    settings = ["resampling.decay=0.5", "rounds=1"]
    choice = choose(
        [], None, settings, ["fedavg,tau-norm", "iwds"], ["0,2"], {"results": "somewhere"}
    )
    cells = choice.cells()
    assert [(cell.row, cell.seed) for cell in cells] == [
        (method, seed) for seed in (0, 2) for method in ("fedavg", "tau-norm", "iwds")
    ]
    assert len(runs(cells)) == 4 and {cell.run.general.rounds for cell in cells} == {1}
    assert (
        choose([], None, ["method=iwds"], [], ["0", "1"], {}).experiments[0].rows[0].method
        == "iwds"
    )
    assert choose([], None, [], ["iwds"], ["1"], {"overwrite": None}) == Choice(
        [], {"method": "iwds", "seed": 1}, ()
    )


def test_each_experiment_s_table_of_clients_has_its_own_sites(
    tmp_path: Path, fedskew: FedSkew
) -> None:
    """Two experiments on other domains have other sites, also where both have as many."""
    domains = {"first": ("digits", "digits-noisy"), "second": ("digits-blurred", "digits")}
    entries = {}
    for name, of_entry in domains.items():
        settings = {"dataset": f"domains:{','.join(of_entry)}", "model": "mlp-bn", "rounds": 1}
        sizes = {"local-epochs": 1, "train-images": 100, "test-images": 50}
        entries[name] = {
            "title": name,
            "settings": {**settings, **sizes},
            "methods": ["fedper"],
            "seeds": [0],
        }
    file = tmp_path / "experiments.yaml"
    file.write_text(json.dumps(entries))
    words = ["--experiments", file, "--results", tmp_path / "results"]
    status, out, errors = fedskew("run", *domains, *words)
    assert status == 0, errors
    _, *tables = out.split("Accuracy at each client on its own test set")
    for table, (name, of_entry) in zip(tables, domains.items(), strict=True):
        heading = table.splitlines()[2].split()
        assert heading[-2:] == list(of_entry)
        (row,) = [line for line in table.splitlines() if line.split()[:2] == [name, "fedper"]]
        (folder,) = (tmp_path / "results").glob(f"domains-{'-'.join(of_entry)}-*")
        models = json.loads((folder / "summary.json").read_text())["models"]
        accuracies = models["average"]["last"]["client-accuracy"]["values"]
        assert row.split()[-2:] == [f"{100 * accuracy:.1f}" for accuracy in accuracies]


def test_runs_at_a_time_are_for_named_experiments(tmp_path: Path, fedskew: FedSkew) -> None:
    for more in ([], ["--dry-run"]):
        status, _, errors = fedskew("run", *QUICK, "--results", tmp_path, "--jobs", "2", *more)
        assert status == 2 and errors == "fedskew: --jobs = 2: is for several runs\n"


@pytest.mark.parametrize("names", [[], ["demo-tail"]])
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--set", "seed=1.5"], "fedskew: seed = 1.5: must be an integer\n"),
        (["--set", "seed=x"], "fedskew: seed = 'x': must be an integer\n"),
        (["--set", "seed=-1"], "fedskew: seed = -1: must be 0 or more\n"),
        (["--set", "seed=\uff11"], "fedskew: seed = '\uff11': must be an integer\n"),
        (["--seed", "\uff11"], "fedskew: --seed = '\uff11': must be an integer, or several"),
        (["--seed", "-1"], "fedskew: seed = -1: must be 0 or more\n"),
        (["--results", ""], "fedskew: results = '': must name a folder\n"),
        (["--workers", "-1"], "Invalid value for '--workers': -1 is not in the range x>=0."),
        (["--jobs", "-1"], "Invalid value for '--jobs': -1 is not in the range x>=0."),
    ],
)
def test_options_out_of_range_are_refused(
    fedskew: FedSkew,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    names: list[str],
    words: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)  # where --results "" would be
    status, _, errors = fedskew("run", *names, *words)
    assert status == 2 and sentence in errors
    assert not list(tmp_path.iterdir())


def test_a_run_that_fails_says_why_and_exits_with_1(tmp_path: Path, fedskew: FedSkew) -> None:
    status, _, errors = fedskew("run", *QUICK, "--results", tmp_path, "--set", "learning-rate=1e30")
    assert status == 1 and "not finite" in errors


@pytest.mark.parametrize("topic", ["methods", "settings", "models", "experiments"])
def test_lists_are_whole_in_both_forms(fedskew: FedSkew, topic: str) -> None:
    (as_json, output, _), (as_table, table, _) = (
        fedskew("list", topic, "--json"),
        fedskew("list", topic),
    )
    rows = json.loads(output)
    assert as_json == as_table == 0 and rows
    for row in rows:
        assert all(value != "" or key == "default" for key, value in row.items())
        assert str(next(iter(row.values()))) in table


def wait_for_a_round(results: Path, running: subprocess.Popen[str]) -> None:
    """Return once a run below `results` has recorded a round, which it cannot do before it takes signals.

    The bound is long, as a busy machine takes a minute to import torch in every process.
    """
    deadline = time.monotonic() + 900
    while not list(results.glob("*/rounds.jsonl")):
        assert running.poll() is None, "the run ended before its first round"
        assert time.monotonic() < deadline, "no round within 900 s"
        time.sleep(0.02)


@pytest.mark.parametrize("engine", ["inprocess", pytest.param("workers", marks=pytest.mark.slow)])
def test_an_interrupt_ends_every_process_and_the_same_command_goes_on(
    tmp_path: Path, fedskew: FedSkew, engine: str
) -> None:
    small = {
        "rounds": 100,
        "clients": 2,
        "train-images": 40,
        "test-images": 20,
        "local-steps": 1,
        "evaluate-every": 0,
    }
    words = ["run", "--engine", engine, "--results", str(tmp_path), "--json"]
    words += [word for key, value in small.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "fedskew", *words]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_a_round(tmp_path, running)
    children = psutil.Process(running.pid).children(recursive=True)
    running.send_signal(signal.SIGINT)
    errors = running.communicate(timeout=900)[1]
    assert running.returncode == 130
    assert "interrupted" in errors
    assert not psutil.wait_procs(children, timeout=60)[1]
    status, summary, lines = fedskew(*words)
    assert status == 0 and "resuming after round" in lines
    assert json.loads(summary)["rounds"] == 100


@pytest.mark.slow
def test_a_killed_run_leaves_no_worker_and_the_same_command_goes_on(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "fedskew",
        "run",
        "--engine",
        "workers",
        "--results",
        str(tmp_path),
        "--json",
    ]
    command += ["--set", "rounds=20", "--set", "local-epochs=1", "--workers", "2"]
    running = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
    )
    wait_for_a_round(tmp_path, running)
    children = psutil.Process(running.pid).children(recursive=True)
    assert len(children) >= 2
    running.kill()
    running.wait()
    assert not psutil.wait_procs(children, timeout=60)[1]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    assert "resuming after round" in finished.stderr
