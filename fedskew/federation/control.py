"""The coordinator's requests to its SuperLink: register sites, list those online, submit runs, read how they ended.

flwr's own client of the control interface in one process: each call of flwr's command line would cost a second.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from data.agreement import Agreement, as_flower_has_it
from fedskew.engines.processes import LaunchFailed
from fedskew.federation.flower_internals import (
    ControlHttpClient,
    Fab,
    HeaderInterceptor,
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
    cli_version_header,
    fab_to_proto,
    user_config_from_proto,
    user_config_to_proto,
)
from fedskew.federation.folder import SECRET_HEADER, FederationFolder
from site_agent.app_files import packed_app

READING = ("ListNodes", "ListRuns")
"""Calls that change nothing."""


class Unreachable(ConnectionError):
    """The SuperLink does not answer."""


class RunLost(ConnectionError):
    """The run's process is gone, or the SuperLink does not know the run: it can be submitted again."""


class Failing(LaunchFailed):
    """The SuperLink answers with an error of its own, as with a damaged database."""


@dataclass(frozen=True)
class RunStatus:
    """The status of a submitted run."""

    status: str
    """pending, starting, running, or as finished:completed."""
    details: str

    @property
    def finished(self) -> bool:
        """Whether the run has ended, in whatever way."""
        return self.status.startswith("finished")


class Control:
    """The control interface of the SuperLink, on loopback."""

    def __init__(self, folder: FederationFolder) -> None:
        self.folder = folder
        port = folder.coordinator.superlink_port
        secret = HeaderInterceptor(SECRET_HEADER, folder.control_secret)
        self.client = ControlHttpClient.from_server_address(
            server_address=f"127.0.0.1:{port}",
            insecure=False,
            root_certificates=folder.authority[0].read_bytes(),
            interceptors=[cli_version_header(), secret],
        )

    def ask(self, call: str, request: Any) -> Any:
        """Return the answer to a call.

        The SuperLink closes a connection 5 seconds after its last answer, which may cross with the next request: a
        run's state is asked for every 5 seconds. So a call that changes nothing is made once more.

        Raises:
            Unreachable: there is no answer.
            Failing: the SuperLink has an error of its own; the message says why, and what to do.
            RuntimeError: it refuses the call.
        """
        method = getattr(self.client, call)
        try:
            try:
                return method(request)
            except httpx.RemoteProtocolError:
                if call not in READING:
                    raise
                return method(request)
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            if status < httpx.codes.INTERNAL_SERVER_ERROR:
                reason = error.response.text[:500]
                raise RuntimeError(f"the SuperLink refuses {call}: {reason}") from error
            reason = f"the SuperLink fails at {call} ({status}); {self.folder.log} may say why"
            raise Failing(f"{reason}; {restart(self.folder)}") from error
        except httpx.HTTPError as error:
            raise Unreachable(f"the SuperLink does not answer: {error}") from error

    def nodes(self) -> dict[bytes, Any]:
        """Return the registered nodes by their public key; status is registered, online or offline."""
        nodes = self.ask("ListNodes", ListNodesRequest()).nodes_info
        return {node.public_key: node for node in nodes if node.status != "unregistered"}

    def register(self, agreement: Agreement) -> None:
        """Register the sites of the agreement that are not registered yet, and unregister all other nodes.

        The SuperLink never takes the key of an unregistered node again.
        """
        known = self.nodes()
        agreed = {as_flower_has_it(site.key): site.name for site in agreement.sites}
        for key, node in known.items():
            if key not in agreed:
                self.ask("UnregisterNode", UnregisterNodeRequest(node_id=node.node_id))
        for key, name in agreed.items():
            if key not in known:
                self.ask("RegisterNode", RegisterNodeRequest(public_key=key, name=name))

    def away(self, agreement: Agreement) -> dict[str, str]:
        """Return the sites that are not online, and since when, in words."""
        nodes = self.nodes()
        words = {}
        for site in agreement.sites:
            node = nodes.get(as_flower_has_it(site.key))
            if node is not None and node.status == "online":
                continue
            time = "" if node is None else node.last_deactivated_at[:19].replace("T", " ")
            words[site.name] = f"since {time} UTC" if time else "since the beginning"
        return words

    def unfinished(self) -> list[dict[str, Any]]:
        """Return the run configs of the runs that have not ended, of the last twenty, the newest first."""
        runs = list(self.ask("ListRuns", ListRunsRequest()).run_dict.values())
        runs.sort(key=lambda run: str(run.pending_at), reverse=True)
        going = [run for run in runs if not run.status.status.startswith("finished")]
        return [user_config_from_proto(run.override_config) for run in going]

    def submit(self, app: Path, config: Mapping[str, bool | int | float | str]) -> int:
        """Submit the app with a run config, and return the run's id."""
        packed = packed_app(app)
        code = hashlib.sha256(packed).hexdigest()
        fab = fab_to_proto(Fab(code, packed, {}))
        overrides = user_config_to_proto(dict(config))
        request = StartRunRequest(fab=fab, override_config=overrides)
        answer = self.ask("StartRun", request)
        if not answer.HasField("run_id"):
            raise RuntimeError(f"the SuperLink takes no run: {answer.note}")
        return int(answer.run_id)

    def stop(self, run: int) -> None:
        """Stop a run: one that is still pending never begins."""
        self.ask("StopRun", StopRunRequest(run_id=run))

    def status(self, run: int) -> RunStatus:
        """Return how a run stands.

        Raises RunLost where the SuperLink does not know it, as after its database was made anew, and what `ask` raises.
        """
        try:
            runs = self.ask("ListRuns", ListRunsRequest(run_id=run)).run_dict
        except Failing:
            raise
        except RuntimeError as error:
            raise RunLost(f"run {run} was lost ({error})") from error
        if run not in runs:  # a map of protobuf's would make an empty entry, which never finishes
            raise RunLost(f"run {run} was lost (the SuperLink does not list it)")
        listed = runs[run].status
        status = listed.status
        if listed.sub_status:
            status += f":{listed.sub_status}"
        return RunStatus(status, listed.details)


def restart(folder: FederationFolder) -> str:
    """Return how to restart the service, as part of a sentence.

    A run's checkpoint is not in the database, and the sites come back by themselves where it is made anew.
    """
    return (
        f"`fedskew federation down {folder.path}` and `up` start it anew, and the same command "
        f"then goes on where the run stands; if the database is damaged, move {folder.database}* away in between"
    )
