"""Attacks on the sites by a coordinator gone bad: other code, and other questions under the agreed code."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flwr.app import Context, RecordDict
from local_federation import ROOT

from attacks.stage import ALONE, AT_WORK, Attack, Stage, Succeeded
from client_app.app import app
from client_app.app_files import app_files, app_hash
from client_app.messages import handing_over
from client_app.models import build
from client_app.site import install
from client_app.site_file import read_site
from fedskew.engines.local import identify
from server_app.settings import parse
from strategies.exchange import QUERY, TRAIN, Request

SITE = 0
"""The site that is asked."""
PATIENCE = 120.0
Change = Callable[[dict[str, Any]], None]


def settings_of(stage: Stage, results: str, **stated: Any) -> Any:
    """Return the settings of a run of the coordinator's own."""
    file = f"sites:{stage.folder.agreement_file.resolve()}"
    whole = {
        "dataset": file,
        "model": "mlp-bn",
        "seed": 1,
        "results": str(stage.federation.work / results),
        **stated,
    }
    return parse(whole)


def changed_app(stage: Stage) -> str:
    """Submit the app with a byte more in client_app/app.py; what the sites would play is refused, whoever ships it."""
    folder, log = stage.federation.work / "changed-app", stage.site_log(SITE)
    for name, content in app_files(ROOT).items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content + (b"#" if name == "client_app/app.py" else b""))
    stage.control.submit(
        folder, settings_of(stage, "changed", method="fedavg", rounds=1).going_on().flat()
    )
    return log.wait_for("refused:", f"the app {app_hash(app_files(folder))[:16]}", seconds=PATIENCE)


class Words(logging.Handler):
    """Keeps what a site says of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def ask(
    stage: Stage,
    change: Change,
    kind: str = TRAIN,
    client: int = SITE,
    question: str = "",
    method: str = "fedavg",
) -> str:
    """Let the site's code answer a message whose assignment is changed, past readiness; return both its sentences."""
    site = replace(
        read_site(stage.place(SITE) / "site.toml"), state=stage.federation.work / "aside"
    )
    assignment = json.loads(settings_of(stage, "hostile", method=method).assignment().to_json())
    change(assignment)
    task: dict[str, int | str] = {"round": 1, "question": question}
    state = build(
        "mlp-bn", stage.folder.agreement.shape, len(stage.folder.agreement.classes), 0
    ).state_dict()
    words, logger = Words(), logging.getLogger("fedskew.site")
    logger.addHandler(words)
    install({SITE: site})
    identify()
    try:
        with handing_over():
            message = Request(kind, task, {"model": state}, json.dumps(assignment), {}).message(
                1, [client]
            )
            message.metadata.__dict__["_message_id"] = "1"
            content = app(message, Context(1, 1, {}, RecordDict(), {})).content
    finally:
        install({})
        logger.removeHandler(words)
    if list(content) != [f"{client}/error"]:
        raise Succeeded(f"the reply holds {', '.join(content)}")
    reason = content.config_records[f"{client}/error"]["reason"]
    return "\n".join([f"to the server: {reason}", *words.lines])


def stating(part: str, key: str, value: Any) -> Callable[[Stage], str]:
    """Return an attack by a message whose assignment states something."""
    return lambda stage: ask(
        stage, lambda entries: (entries[part] if part else entries).update({key: value})
    )


def for_another(stage: Stage) -> str:
    return ask(stage, lambda entries: None, client=SITE + 1)


def statistics(stage: Stage) -> str:
    return ask(stage, lambda entries: None, QUERY, question="class-statistics", method="ccvr")


BAD = "a coordinator, with the agreed app and a server of its own"
ATTACKS = [
    Attack("the app with one byte changed", "a coordinator", AT_WORK, changed_app),
    Attack(
        "a message with another federation's hash",
        BAD,
        ALONE,
        stating("data", "dataset", "sites:" + "0" * 64),
    ),
    Attack("a path in a message: of data", BAD, ALONE, stating("data", "data_root", "/etc")),
    Attack("a path in a message: of a cache", BAD, ALONE, stating("data", "cache", "elsewhere")),
    Attack("a module in a message", BAD, ALONE, stating("", "model", "os:system")),
    Attack(
        "a memory folder outside the site's state",
        BAD,
        ALONE,
        stating("", "folder", "../../elsewhere"),
    ),
    Attack("a message for another site", BAD, ALONE, for_another),
    Attack("a question that policy does not allow, past readiness", BAD, ALONE, statistics),
]
