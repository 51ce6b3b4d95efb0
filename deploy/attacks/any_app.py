"""Attacks on sites that run another Flower app than FedSkew's: other code, too much in a reply, a site not asked.

The honest request of every row is one run of the approved app, whose model has to be that of flwr's own SuperNodes.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from app_federation import TRAINED, AppFederation, model_hash, stock_run

from attacks.stage import Attack, ControlFailed, Refusal, Succeeded
from client_app.local_site import RUN_SIGNATURE
from fedskew.federation.coordinator_key import sign_app_run
from fedskew.federation.flower_internals import fused_config
from fedskew.federation.folder import FederationFolder
from fedskew.federation.superlink import Control

ATTACKED = TRAINED[0]
"""The site that is attacked."""
OTHER = "west"
"""The site that takes no part in the runs."""
COMMENT = "\n# one line more\n"
SECONDS = 600.0
"""Seconds for a run to end."""


class AppStage:
    """A federation of another app, at work."""

    def __init__(self, federation: AppFederation) -> None:
        self.federation = federation
        self.failed: Exception | None = None

    def require_honest_run(self) -> str:
        """Return the line of the honest run, which is made once. Raises what it raised for every row."""
        if self.failed is None:
            try:
                return self.honest_run
            except Exception as error:
                self.failed = error
        raise self.failed

    @cached_property
    def honest_run(self) -> str:
        """The line that shows an honest run. Raises ControlFailed unless its model is that of the stock run."""
        federation = self.federation
        expected = stock_run(federation.app, federation.work / "stock")
        model = federation.work / "model.pt"
        if federation.submit(model):
            raise ControlFailed((federation.work / "submit.log").read_text()[-600:])
        if model_hash(model) != expected:
            raise ControlFailed(f"the model is {model_hash(model)}, and {expected} on flwr's nodes")
        events = [entry["event"] for entry in federation.audit(ATTACKED)]
        if "answered" not in events or "refused" in events:
            raise ControlFailed(f"the audit log of {ATTACKED} has the events {events}")
        return f"the model of the sites and of flwr's own SuperNodes is {expected[:16]}"

    @cached_property
    def task_file(self) -> str:
        """The name of the module with the app's model."""
        return next(path.relative_to(self.federation.app).as_posix() for path in sorted(
            self.federation.app.glob("*/task.py")
        ))  # fmt: skip

    def refusals_during(self, attack: Callable[[], Any]) -> list[Refusal]:
        """Return how the attacked site's audit log says that something was refused. Raises Succeeded without a line."""
        before = len(self.federation.audit(ATTACKED))
        attack()
        entries = self.federation.audit(ATTACKED)[before:]
        refused = [entry for entry in entries if entry["event"] == "refused"]
        if not refused:
            raise Succeeded(f"the audit log has {[entry['event'] for entry in entries]}")
        return [Refusal("refused", refused[0]["why"])]


def honest(stage: Any) -> str:
    """Return the line that shows that the approved app was run."""
    return str(stage.require_honest_run())


def other_app(stage: Any) -> list[Refusal]:
    """Submit an app with one comment more than the approved one."""
    federation: AppFederation = stage.federation
    changed = federation.work / "changed"
    shutil.copytree(federation.app, changed)
    with (changed / stage.task_file).open("a") as file:
        file.write(COMMENT)
    folder = FederationFolder(federation.folder)
    control = Control(folder)

    def run() -> None:
        number, until = control.submit(changed, {}), time.monotonic() + SECONDS
        while not control.status(number).finished and time.monotonic() < until:
            time.sleep(0.5)

    return list(stage.refusals_during(run))


def past_the_command(stage: Any, overrides: dict[str, Any]) -> None:
    """Start the approved app at the SuperLink with a run config, and wait for its end."""
    federation: AppFederation = stage.federation
    folder = FederationFolder(federation.folder)
    control = Control(folder)
    number, until = control.submit(federation.app, overrides), time.monotonic() + SECONDS
    while not control.status(number).finished and time.monotonic() < until:
        time.sleep(0.5)


def unsigned(stage: Any) -> list[Refusal]:
    """Start a run without a signature."""
    return list(stage.refusals_during(lambda: past_the_command(stage, {"num-server-rounds": 1})))


def other_config(stage: Any) -> list[Refusal]:
    """Start a run with the signature of one that has fewer rounds."""
    federation: AppFederation = stage.federation
    folder = FederationFolder(federation.folder)
    pyproject = (federation.app / "pyproject.toml").read_bytes()
    config = fused_config(pyproject, {"num-server-rounds": 1})
    del config[RUN_SIGNATURE]
    signature = sign_app_run(folder.agreement, TRAINED, config, folder.coordinator_key)
    overrides = {"num-server-rounds": 2, RUN_SIGNATURE: signature}
    return list(stage.refusals_during(lambda: past_the_command(stage, overrides)))


def changed_copy(stage: Any) -> list[Refusal]:
    """Change the copy from which the site runs the app."""
    federation: AppFederation = stage.federation
    file: Path = federation.places[ATTACKED] / "state" / "app" / stage.task_file
    before = file.read_bytes()
    file.write_bytes(before + COMMENT.encode())
    try:
        return list(stage.refusals_during(lambda: federation.submit(rounds=1)))
    finally:
        file.write_bytes(before)


@contextmanager
def policy(federation: AppFederation, **changed: Any) -> Iterator[None]:
    """Within this context the attacked site has another policy."""
    federation.write_policy(ATTACKED, **changed)
    federation.restart(ATTACKED)
    try:
        yield
    finally:
        federation.write_policy(ATTACKED)
        federation.restart(ATTACKED)


def too_few_samples(stage: Any) -> list[Refusal]:
    """Ask a site for an update that is made of fewer samples than it asks for."""
    with policy(stage.federation, min_samples=100_000):
        return list(stage.refusals_during(lambda: stage.federation.submit(rounds=1)))


def too_large_norm(stage: Any) -> list[Refusal]:
    """Ask a site for an update whose norm is larger than it allows."""
    with policy(stage.federation, max_norm=1e-6):
        return list(stage.refusals_during(lambda: stage.federation.submit(rounds=1)))


def not_asked(stage: Any) -> list[Refusal]:
    """Send the messages of a run to a site that takes no part in it, as flwr's strategies do with every node."""
    answered = [entry["event"] for entry in stage.federation.audit(OTHER)]
    if "answered" in answered:
        raise Succeeded(f"the audit log of {OTHER} has {answered}")
    lines = (stage.federation.folder / "superlink" / "gate.log").read_text().splitlines()
    found = [line for line in lines if f"{OTHER} takes no part in run" in line]
    if not found:
        raise Succeeded(f"the gateway has declined nothing for {OTHER}")
    return [Refusal("declined", found[0])]


COORDINATOR, USER = "the coordinator", "a user of the site's machine"
GATEWAY = "who holds the gateway's machine"


def attacks(name: str) -> list[Attack]:
    """Return the rows for an example's app."""
    where = f"examples/{name}"
    return [
        Attack("a run's messages to a site that it does not name", COORDINATOR, where, honest, not_asked,
               (Refusal("declined", "takes no part in run"),)),
        Attack("a Flower app with one comment more than the approved one", COORDINATOR, where, honest, other_app,
               (Refusal("refused", "is not approved at this site"),)),
        Attack("one comment more in the copy of the app that the site runs", USER, where, honest, changed_copy,
               (Refusal("refused", "is not what was approved"),)),
        Attack("a Flower app's run without a signature", GATEWAY, where, honest, unsigned,
               (Refusal("refused", "nobody has signed this run config"),)),
        Attack("a Flower app's run with the signature of another run config", GATEWAY, where, honest, other_config,
               (Refusal("refused", "is not one of the run-key in federation.toml"),)),
        Attack("a Flower app's update of fewer samples than min-samples", COORDINATOR, where, honest, too_few_samples,
               (Refusal("refused", "at least 100000 are asked for"),)),
        Attack("a Flower app's update of a norm above max-norm", COORDINATOR, where, honest, too_large_norm,
               (Refusal("refused", "and max-norm = 1e-06"),)),
    ]  # fmt: skip
