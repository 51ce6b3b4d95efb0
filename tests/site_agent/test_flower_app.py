"""A site runs any Flower app from its own approved copy, and each record of a reply has to be allowed to leave."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from site_files import agreed, site_entries, write

from client_app.flower_internals import TaskIdentity
from client_app.local_site import RunNotAllowed
from data import DataError
from site_agent.app_files import app_hash
from site_agent.approval import approve, approved_app
from site_agent.config import AppPolicy, Site, read_site
from site_agent.flower_app import InstalledApp, check_reply, leaving
from site_agent.pool import REFUSED, Pool

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = """\
[project]
name = "tiny"
version = "1.0.0"
description = "A tiny app."
license = "Apache-2.0"

[tool.flwr.app]
publisher = "you"

[tool.flwr.app.components]
serverapp = "tinyapp.code:app"
clientapp = "tinyapp.code:app"
"""
CODE = """\
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    steps = context.state.get("steps", MetricRecord({"steps": 0}))["steps"] + 1
    context.state["steps"] = MetricRecord({"steps": steps})
    if message.content["config"]["fail"]:
        raise ValueError("a patient's name")
    metrics = {"num-examples": message.content["config"]["samples"], "steps": steps}
    metrics["number"] = context.node_config["partition-id"]
    content = {"arrays": message.content["arrays"], "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=message)
"""
FILES = {
    "pyproject.toml": PYPROJECT.encode(),
    "tinyapp/__init__.py": b"",
    "tinyapp/code.py": CODE.encode(),
}


@pytest.fixture(autouse=True)
def identity() -> None:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


@pytest.fixture
def app(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def site(folder: Path, code: str, **policy: Any) -> Site:
    """Return a site whose agreement is about an app of this hash."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    write(folder / "federation.toml", agreed(app=code))
    table = {"node-config": {"partition-id": 3}, **policy}
    return read_site(write(folder / "site.toml", site_entries(data="folder:data", app=table)))


def arrays(*values: float, steps: int = 0) -> ArrayRecord:
    """Return a model of one tensor, with a step counter as batch norm has one."""
    return ArrayRecord({"w": Array(np.array(values, np.float32)), "steps": Array(np.array(steps))})


def message(samples: int = 20, fail: bool = False, kind: str = "train") -> Message:
    config = ConfigRecord({"samples": samples, "fail": fail})
    return Message(RecordDict({"arrays": arrays(0, 0), "config": config}), 1, kind)


def reply(asked: Message, samples: float = 20, **records: Any) -> Message:
    usual = {"arrays": arrays(3, 4, steps=50), "metrics": MetricRecord({"num-examples": samples})}
    return Message(RecordDict({**usual, **records}), reply_to=asked)


def context() -> Context:
    return Context(1, 1, {}, RecordDict(), {})


def test_an_allowed_reply_leaves() -> None:
    asked = message()
    check_reply(AppPolicy(max_norm=5, max_bytes=10_000), reply(asked), asked)
    uploads = {"upload/gradients": arrays(1), "fedskew": ConfigRecord({"client": 1})}
    policy = AppPolicy(arrays=("arrays", "upload/*"), configs=("fedskew",))
    check_reply(policy, reply(asked, **uploads), asked)


@pytest.mark.parametrize(
    "key, policy, records",
    [
        ("arrays", {}, {"upload/gradients": arrays(1)}),
        ("metrics", {}, {"more": MetricRecord({"x": 1})}),
        ("configs", {}, {"more": ConfigRecord({"x": "a"})}),
        ("max-bytes", {"max_bytes": 10}, {}),
        ("max-norm", {"max_norm": 4.9}, {}),
        ("max-norm", {"max_norm": 5}, {"arrays": arrays(float("nan"), 0)}),
        ("max-norm", {"max_norm": 5}, {"arrays": arrays(9, 9, 9)}),
        ("min-samples", {"min_samples": 21}, {}),
        ("min-samples", {}, {"metrics": MetricRecord({"num-examples": float("nan")})}),
        ("min-samples", {}, {"metrics": MetricRecord({"loss": 1.0})}),
    ],
)
def test_what_the_policy_does_not_name_stays(
    key: str, policy: dict[str, Any], records: dict[str, Any]
) -> None:
    asked = message()
    with pytest.raises(RunNotAllowed) as refused:
        check_reply(AppPolicy(**policy), reply(asked, **records), asked)
    assert refused.value.permission == key


def test_an_error_with_a_text_of_the_apps_stays() -> None:
    asked = message()
    with pytest.raises(RunNotAllowed, match="an error of its own"):
        check_reply(AppPolicy(), Message(Error(2, "a patient's name"), reply_to=asked), asked)


def test_the_answer_to_a_question_needs_no_samples() -> None:
    asked = message(kind="query")
    answer = Message(RecordDict({"metrics": MetricRecord({"counts": [1, 2]})}), reply_to=asked)
    check_reply(AppPolicy(), answer, asked)


def test_a_step_counter_is_not_in_the_norm_of_a_change() -> None:
    """flwr's own clipping has it in: 50 steps would hide an update of norm 5."""
    asked = message()
    rows = {row["name"]: row for row in leaving(reply(asked), asked)}
    assert rows["arrays"]["norm"] == 5
    assert rows["metrics"]["bytes"] > 0 and "norm" not in rows["metrics"]


def test_the_approved_copy_is_run_with_the_sites_node_config(tmp_path: Path) -> None:
    this_site = site(tmp_path, app_hash(FILES))
    pool = Pool(InstalledApp(this_site, FILES), leaving)
    known = context()
    try:
        for step in (1, 2):
            answered = pool.run_task(1, message(), known, lambda: None)
            assert answered is not None
            metrics = answered[0].content["metrics"]
            assert metrics["steps"] == step and metrics["number"] == 3
            assert known.state["steps"]["steps"] == step
        # A refused reply and a failed one leave the state as it was; neither's reason leaves.
        for asked, code, reason in (
            (message(samples=7), REFUSED, "policy: min-samples"),
            (message(fail=True), 2, "ValueError"),
        ):
            answered = pool.run_task(1, asked, known, lambda: None)
            assert answered is not None
            assert (answered[0].error.code, answered[0].error.reason) == (code, reason)
            assert known.state["steps"]["steps"] == 2
        assert not known.node_config
    finally:
        pool.end()


@pytest.mark.parametrize("change", ["changed", "added", "removed"])
def test_a_copy_that_was_changed_is_not_run(tmp_path: Path, change: str) -> None:
    pool = Pool(InstalledApp(site(tmp_path, app_hash(FILES)), FILES), leaving)
    folder = tmp_path / "state" / "app"
    if change == "changed":
        (folder / "tinyapp" / "code.py").write_bytes(CODE.encode() + b"# more\n")
    elif change == "added":
        (folder / "random.py").write_text("")
    else:
        (folder / "tinyapp" / "__init__.py").unlink()
    try:
        answered = pool.run_task(1, message(), context(), lambda: None)
    finally:
        pool.end()
    assert answered is not None
    assert answered[0].error.reason == "policy: app"
    assert "is not what was approved" in answered[1][0]["why"]


def test_an_app_is_approved_by_its_hash(tmp_path: Path, app: Path) -> None:
    from site_agent.app_files import app_files

    code = app_hash(app_files(app))
    this_site = site(tmp_path, code)
    shown: list[str] = []
    federation = tmp_path / "federation.toml"
    assert not approve(this_site, federation, app, lambda text: bool(shown.append(text)))
    with pytest.raises(DataError, match="nothing is approved"):
        approved_app(this_site)
    assert approve(this_site, federation, app, lambda text: True)
    assert approved_app(this_site) == code
    assert code in shown[0] and "samples of a reply: at least 8" in shown[0]
    with (app / "tinyapp" / "code.py").open("a") as file:
        file.write("# more\n")
    with pytest.raises(DataError, match=r"federation\.toml says app"):
        approve(this_site, federation, app, lambda text: True)
    kept = tmp_path / "state" / "approved" / "app.fab"
    kept.write_bytes(kept.read_bytes()[:-40])
    with pytest.raises(DataError):
        approved_app(this_site)


@pytest.mark.parametrize(
    "changed, key",
    [
        ({"data/__init__.py": b""}, "data"),
        ({"random.py": b""}, "random"),
        ({"pyproject.toml": b""}, "clientapp"),
        ({"pyproject.toml": PYPROJECT.replace("tinyapp.code", "other").encode()}, "clientapp"),
    ],
)
def test_an_app_that_cannot_be_run_as_it_was_approved_is_refused(
    tmp_path: Path, changed: dict[str, bytes], key: str
) -> None:
    """A clone's own package `data` would be imported in the place of the app's."""
    files = {**FILES, **changed}
    with pytest.raises(DataError) as refused:
        InstalledApp(site(tmp_path, app_hash(files)), files)
    assert refused.value.key == key


@pytest.mark.parametrize(
    "entries, key",
    [
        ({"policy": {"max-norm": 1.0}}, "policy"),
        ({"device": "cuda"}, "device"),
        ({"app": {"max-norm": -1.0}}, "max-norm"),
        ({"app": {"min-samples": 0}}, "min-samples"),
        ({"app": {"max-bytes": -1}}, "max-bytes"),
        ({"app": {"node-config": {"a": [1]}}}, "node-config"),
        ({"app": {"array": []}}, "array"),
    ],
)
def test_site_toml_says_nothing_that_has_no_effect(
    tmp_path: Path, entries: dict[str, Any], key: str
) -> None:
    this_site = site(tmp_path, "0" * 64)
    assert this_site.app == replace(AppPolicy(), node_config={"partition-id": 3})
    file = write(tmp_path / "site.toml", site_entries(data="folder:data", **{"app": {}, **entries}))
    with pytest.raises(DataError) as refused:
        read_site(file)
    assert refused.value.key == key


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flower-quickstart", "flower-transformer"])
def test_an_app_between_sites_gives_flwrs_model_and_refuses_what_it_must(name: str) -> None:
    """Real SuperNodes and the gateway: the rows of `make attacks` that are about other apps, with their controls."""
    if name == "flower-transformer":
        pytest.importorskip("transformers", reason="pip install 'fedskew[transformers]'")
    command = [sys.executable, "-W", "ignore", "deploy/try_attacks.py", "--only-app", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "7 rows: 7 refused" in done.stdout
