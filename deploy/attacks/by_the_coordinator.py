"""Attacks on the sites by a coordinator gone bad: other code, and other questions under the agreed code."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from flwr.app import Context, RecordDict
from local_federation import ROOT

from attacks.stage import (
    ALONE,
    AT_WORK,
    Attack,
    ControlFailed,
    Refusal,
    Stage,
    Succeeded,
    Untried,
    require,
)
from client_app.app import app
from client_app.local_site import RUN_SIGNATURE
from client_app.messages import handing_over
from client_app.models import build
from fedskew.engines.local import identify
from fedskew.federation.coordinator_key import sign_run
from server_app.settings import parse
from site_agent.app_files import app_files, app_hash
from site_agent.config import Site, read_site
from site_agent.data_view import install
from site_agent.run_approval import approve, waiting
from strategies.core.exchange import QUERY, TRAIN, Request

SITE = 0
"""The site that is asked."""
PATIENCE = 600.0
MOST_NORM = 50.0
"""Norm of an update that a site's policy allows, where a row sets one; one of the usual rate has 13."""
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


def agreed_app(stage: Stage) -> str:
    """Show that the site has run the agreed app: its audit log has an answer for each round of the training."""
    agreed = stage.folder.agreement.app
    answered = [
        entry
        for entry in stage.audit(SITE)
        if entry["event"] == "answered" and entry["app"] == agreed
    ]
    require(answered, "the site has run nothing of the agreed app")
    return f"the app {agreed[:16]}: {len(answered)} messages answered"


def changed_app(stage: Stage) -> list[Refusal]:
    """Submit the app with a byte more in client_app/app.py; what the sites would run is refused, whoever ships it."""
    folder, log = stage.federation.work / "changed-app", stage.site_log(SITE)
    for name, content in app_files(ROOT).items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content + (b"#" if name == "client_app/app.py" else b""))
    run = stage.control.submit(
        folder, settings_of(stage, "changed", method="fedavg", rounds=1).going_on().flat()
    )
    code = app_hash(app_files(folder))[:16]
    line = log.wait_for(
        "refused:", f"the app {code} is not approved at this site", seconds=PATIENCE
    )
    about = [entry for entry in stage.audit(SITE) if int(entry.get("run", -1)) == run]
    if any(entry["event"] != "refused" for entry in about):
        raise Succeeded(f"the site's audit log: {about}")
    return [Refusal(entry["event"], f"{line}: {entry['why']}") for entry in about[:1]]


class Words(logging.Handler):
    """Keeps what a site says of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.kinds: list[str] = []
        """Of each error its exception's type."""

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        error_type = getattr(record, "error_type", None)  # client_app.handlers adds the field
        if error_type is not None:
            self.kinds.append(error_type)


def same(entries: dict[str, Any]) -> None:
    """Leave an assignment as it is."""


def aside(stage: Stage) -> Site:
    """Return the site with a state of its own, beside that of the site at work."""
    return replace(
        read_site(stage.place(SITE) / "site.toml"), state=stage.federation.work / "aside"
    )


def signed_config(stage: Stage, assignment: str) -> dict[str, Any]:
    """Return the run config of a coordinator gone bad: it has its key, and signs what it likes."""
    agreement = stage.folder.agreement
    if not agreement.run_key:
        return {}
    return {RUN_SIGNATURE: sign_run(agreement, assignment, stage.folder.coordinator_key)}


def ask(
    stage: Stage,
    change: Change = same,
    kind: str = TRAIN,
    client: int = SITE,
    question: str = "",
    method: str = "fedavg",
    norm: str = "batch",
    policy: Callable[[Site], Site] = lambda site: site,
    more: Mapping[str, str] | None = None,
    run_config: Callable[[Stage, str], dict[str, Any]] = signed_config,
) -> tuple[RecordDict, Words]:
    """Let the site's code answer a message whose assignment is changed, past readiness; return the reply and its words.

    `policy` changes what the site's file says; `more` are more words of the task; `run_config` returns flwr's run
    config for an assignment.
    """
    site = policy(aside(stage))
    honest = settings_of(stage, "hostile", method=method, norm=norm).run_spec()
    run_spec = json.loads(honest.to_json())
    change(run_spec)
    task: dict[str, int | str] = {"round": 1, "question": question, **(more or {})}
    agreed = stage.folder.agreement
    model = build(honest.model, agreed.shape, len(agreed.classes), 0, honest.model_settings)
    state = model.state_dict()
    words, logger = Words(), logging.getLogger("fedskew.site")
    logger.addHandler(words)
    install({SITE: site})
    identify()
    try:
        with handing_over():
            message = Request(kind, task, {"model": state}, json.dumps(run_spec), {}).message(
                1, [client]
            )
            message.metadata.__dict__["_message_id"] = "1"
            config = run_config(stage, json.dumps(run_spec))
            content = app(message, Context(1, 1, {}, RecordDict(), config)).content
    finally:
        install({})
        logger.removeHandler(words)
    return content, words


def answered(stage: Stage, holds: str, **asked: Any) -> str:
    """Return what a site's reply to an honest message holds, `holds` among it. Raises ControlFailed for an error."""
    content, words = ask(stage, **asked)
    if f"{SITE}/error" in content or f"{SITE}/{holds}" not in content:
        raise ControlFailed(f"the reply holds {', '.join(content)}; {'; '.join(words.lines)}")
    return f"the reply holds {', '.join(content)}"


def refused(stage: Stage, **asked: Any) -> list[Refusal]:
    """Return how a site refuses a message: the exception there, and what is said to the server and in its own log."""
    client = asked.get("client", SITE)
    content, words = ask(stage, **asked)
    if list(content) != [f"{client}/error"]:
        raise Succeeded(f"the reply holds {', '.join(content)}")
    reason = content.config_records[f"{client}/error"]["reason"]
    if not words.kinds:
        raise Untried(f"the site has not logged why: {reason}")
    return [Refusal(words.kinds[-1], "\n".join([f"to the server: {reason}", *words.lines]))]


def trains(stage: Stage) -> str:
    """Ask the site to train by the assignment as it is."""
    return answered(stage, "model")


def setting(part: str, key: str, value: Any) -> Change:
    """Return what lets an assignment state something."""
    return lambda entries: (entries[part] if part else entries).update({key: value})


def stating(part: str, key: str, value: Any) -> Callable[[Stage], list[Refusal]]:
    """Return an attack by a message whose assignment states something."""
    return lambda stage: refused(stage, change=setting(part, key, value))


def one_image(stage: Stage) -> list[Refusal]:
    """Ask for one step on one image, of which the first layer's update is that image; batch norm could not do it."""

    def change(entries: dict[str, Any]) -> None:
        entries["training"].update({"batch_size": 1, "local_steps": 1, "local_epochs": 1})

    return refused(stage, change=change, norm="group")


def few_steps(stage: Stage) -> str:
    """Ask for as few steps on mini-batches of the usual size."""
    return answered(stage, "model", change=setting("training", "local_steps", 1), norm="group")


def limited(site: Site) -> Site:
    """Return the site with a policy by which an update has a norm of at most MOST_NORM."""
    return replace(site, max_norm=MOST_NORM)


def usual_update(stage: Stage) -> str:
    return answered(stage, "model", policy=limited)


def large_update(stage: Stage) -> list[Refusal]:
    """Ask for training by a rate at which an update says more of the data than the site lets it."""
    return refused(stage, change=setting("training", "learning_rate", 1.0), policy=limited)


def asks_first(site: Site) -> Site:
    """Return the site with a policy by which somebody there approves each run."""
    return replace(site, approve_runs=True)


def approved_run(stage: Stage) -> str:
    """Ask, let somebody at the site approve the run that waits then, and ask again."""
    refused(stage, policy=asks_first)
    site = aside(stage)
    (code,) = waiting(site)
    approve(site, code)
    return answered(stage, "model", policy=asks_first)


def unapproved_run(stage: Stage) -> list[Refusal]:
    """Ask for a run that differs from the approved one in its learning rate."""
    return refused(stage, change=setting("training", "learning_rate", 0.5), policy=asks_first)


def for_another(stage: Stage) -> list[Refusal]:
    return refused(stage, client=SITE + 1)


STATISTICS: dict[str, Any] = {"kind": QUERY, "question": "class-statistics", "method": "ccvr"}


def allowed_statistics(stage: Stage) -> str:
    """Ask the same of a site whose policy lets class statistics leave."""
    return answered(
        stage,
        "upload/class-statistics",
        policy=lambda site: replace(site, allow=site.allow | {"class-statistics"}),
        **STATISTICS,
    )


def statistics(stage: Stage) -> list[Refusal]:
    return refused(stage, **STATISTICS)


def not_agreed(words: str) -> tuple[Refusal, ...]:
    """Return the refusal of a message that asks for what is not agreed."""
    return (Refusal("NotAgreed", words),)


BAD = "a coordinator, with the agreed app and a server of its own"
AT_WORK_ATTACKS = [
    Attack("the app with one byte changed", "a coordinator", AT_WORK, agreed_app, changed_app,
           (Refusal("refused", "is not approved at this site"),)),
]  # fmt: skip
ATTACKS = [
    Attack("a message with another federation's hash", BAD, ALONE, trains,
           stating("data", "dataset", "sites:" + "0" * 64), not_agreed("is not the agreement")),
    Attack("a path in a message: of data", BAD, ALONE, trains, stating("data", "data_root", "/etc"),
           not_agreed("data_root is the site's own affair")),
    Attack("a path in a message: of a cache", BAD, ALONE, trains, stating("data", "cache", "elsewhere"),
           not_agreed("cache is the site's own affair")),
    Attack("a module in a message", BAD, ALONE, trains, stating("", "model", "os:system"),
           not_agreed("os:system is the site's own affair")),
    Attack("a memory folder outside the site's state", BAD, ALONE, trains, stating("", "folder", "../../elsewhere"),
           not_agreed("is no run's id")),
    Attack("a message for another site", BAD, ALONE, trains, for_another, not_agreed("client 1 is not run here")),
    Attack("a run of one step on one image, whose update is that image", BAD, ALONE, few_steps, one_image,
           (Refusal("RunNotAllowed", "min-batch-size"),)),
    Attack("an update of a larger norm than policy allows", BAD, ALONE, usual_update, large_update,
           (Refusal("NotAllowed", f"max-norm = {MOST_NORM:g}"),)),
    Attack("a run of more rounds than policy allows", BAD, ALONE, trains, stating("", "rounds", 1001),
           (Refusal("RunNotAllowed", "max-rounds"),)),
    Attack("a run that nobody at the site has approved, where its policy asks for that", BAD, ALONE, approved_run,
           unapproved_run, (Refusal("RunNotAllowed", "approve-runs"),)),
    Attack("a question that policy does not allow, past readiness", BAD, ALONE, allowed_statistics, statistics,
           (Refusal("NotAllowed", "class-statistics may not leave"),)),
]  # fmt: skip
