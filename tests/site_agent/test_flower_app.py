"""A site runs any Flower app from its own approved copy, and each record of a reply has to be allowed to leave."""

import io
import zipfile
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

from client_app.flower_internals import TaskIdentity
from client_app.local_site import RunNotAllowed
from data import DataError
from site_agent.app_files import app_files, app_hash
from site_agent.approval import agreed_app, approve, approved_files
from site_agent.config import AppPolicy, Site, read_site
from site_agent.flower_app import InstalledApp, check_reply
from site_agent.pool import REFUSED, Pool
from tests.site_agent.hospital import write_app
from tests.site_files import agreed, site_entries, write

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


@pytest.fixture(autouse=True)
def identity() -> None:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


@pytest.fixture
def app(tmp_path: Path) -> Path:
    files = {"tinyapp/__init__.py": "", "tinyapp/code.py": CODE}
    return write_app(tmp_path / "app", files, "tinyapp.code:app")


def site(folder: Path, code: str, **policy: Any) -> Site:
    """Return a site whose agreement is about an app of this hash."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    write(folder / "federation.toml", agreed(app=code))
    table = {"node-config": {"partition-id": 3}, **policy}
    return read_site(write(folder / "site.toml", site_entries(data="folder:data", app=table)))


def arrays(*values: float, steps: int = 0) -> ArrayRecord:
    """Return a model of one tensor, with a step counter as batch norm has one."""
    return ArrayRecord({"w": Array(np.array(values, np.float32)), "steps": Array(np.array(steps))})


def other_order(*values: float) -> ArrayRecord:
    """Return a model whose numbers are in the byte order of another machine."""
    counter = Array(np.array([1], ">i4"))
    return ArrayRecord({"w": Array(np.array(values, ">f4")), "counter": counter})


def message(samples: int = 20, fail: bool = False, kind: str = "train") -> Message:
    config = ConfigRecord({"samples": samples, "fail": fail})
    return Message(RecordDict({"arrays": arrays(0, 0), "config": config}), 1, kind)


def reply(asked: Message, samples: float = 20, **records: Any) -> Message:
    usual = {"arrays": arrays(3, 4, steps=50), "metrics": MetricRecord({"num-examples": samples})}
    return Message(RecordDict({**usual, **records}), reply_to=asked)


def context() -> Context:
    return Context(1, 1, {}, RecordDict(), {})


UPLOAD = {"upload/gradients": arrays(1)}


@pytest.mark.parametrize(
    "key, policy, records",
    [
        ("", {"max_norm": 5, "max_bytes": 10_000, "min_samples": 20}, {}),
        ("", {"arrays": ("arrays", "upload/*")}, UPLOAD),
        ("", {"configs": ("fedskew",)}, {"fedskew": ConfigRecord({"client": 1})}),
        ("max-norm", {"max_norm": 4.9}, {"arrays": other_order(3, 4)}),
        ("arrays", {}, UPLOAD),
        ("metrics", {}, {"more": MetricRecord({"x": 1})}),
        ("configs", {}, {"more": ConfigRecord({"x": "a"})}),
        ("max-bytes", {"max_bytes": 10}, {}),
        ("max-norm", {"max_norm": 4.9}, {}),
        ("max-norm", {"max_norm": 5}, {"arrays": arrays(float("nan"), 0)}),
        ("min-samples", {"min_samples": 21}, {}),
        ("min-samples", {}, {"metrics": MetricRecord({"loss": 1.0})}),
    ],
)
def test_only_what_the_policy_names_leaves(
    key: str, policy: dict[str, Any], records: dict[str, Any]
) -> None:
    asked = message()
    refused = ""
    try:
        check_reply(AppPolicy.model_construct(**policy), reply(asked, **records), asked)
    except RunNotAllowed as error:
        refused = error.permission
    assert refused == key


def test_the_approved_copy_is_run_with_the_sites_node_config_and_no_other(
    tmp_path: Path, app: Path
) -> None:
    files = app_files(app)
    pool = Pool(InstalledApp(site(tmp_path, app_hash(files)), files))
    known = context()

    def answered(asked: Message) -> Message:
        result = pool.run_task(1, asked, known, lambda: None)
        assert result is not None
        return result[0]

    try:
        for step in (1, 2):
            metrics = answered(message()).content["metrics"]
            assert (metrics["steps"], metrics["number"]) == (step, 3)
        # A refused reply and a failed one leave the state as it was; neither's reason leaves.
        error = answered(message(samples=7)).error
        assert (error.code, error.reason) == (REFUSED, "policy: min-samples")
        error = answered(message(fail=True)).error
        assert (error.code, error.reason) == (2, "ValueError")
        assert known.state["steps"]["steps"] == 2 and not known.node_config
        pool.end()
        (tmp_path / "state" / "app" / "random.py").write_text("")
        assert answered(message()).error.reason == "policy: app"
    finally:
        pool.end()


def test_a_node_config_has_no_tables_or_lists(tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        site(tmp_path, "0" * 64, **{"node-config": {"partitions": [1, 2]}})
    assert refused.value.key == "node-config"


def test_an_error_with_a_text_of_the_apps_stays() -> None:
    asked = message()
    with pytest.raises(RunNotAllowed):
        check_reply(AppPolicy(), Message(Error(2, "a patient's name"), reply_to=asked), asked)


def test_an_app_is_approved_by_its_hash(tmp_path: Path, app: Path) -> None:
    code = app_hash(app_files(app))
    federation = tmp_path / "federation.toml"
    shown: list[str] = []
    limited = site(tmp_path, code, **{"max-norm": 1.5, "max-bytes": 99, "min-samples": 9})
    assert approve(limited, federation, app, lambda text: not shown.append(text))
    assert approved_files(limited) and code in shown[0]
    assert "policy      max-norm = 1.5\n" in shown[0] and "policy      max-bytes = 99\n" in shown[0]
    assert "policy      min-samples = 9\n" in shown[0] and "policy      configs = []\n" in shown[0]
    with (app / "tinyapp" / "code.py").open("a") as file:
        file.write("# more\n")
    with pytest.raises(DataError):
        approve(limited, federation, app, lambda text: True)


@pytest.mark.parametrize("name", ["data/__init__.py", "random.py", "tinyapp/code.py"])
def test_an_app_that_cannot_be_run_as_it_was_approved_is_refused(
    tmp_path: Path, app: Path, name: str
) -> None:
    """A clone's own package `data` would be imported in the place of the app's."""
    files = {**app_files(app), name: b""}
    if name == "tinyapp/code.py":
        del files[name]
    fab = io.BytesIO()
    with zipfile.ZipFile(fab, "w") as packed:
        for file, content in files.items():
            packed.writestr(file, content)
    with pytest.raises(DataError) as refused:
        agreed_app(site(tmp_path, app_hash(files)), fab.getvalue(), "app")
    names = {"data/__init__.py": "data", "random.py": "random"}
    assert refused.value.key == names.get(name, "clientapp")
