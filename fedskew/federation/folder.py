"""A federation's folder at its coordinator: its files, and its creation.

FOLDER/federation.toml    what all parties agree to, as people edit it; sites get it, and compare its hash
      /agreed.toml        its copy in force, which `agree` writes
      /coordinator.toml   the address that sites use, and the ports
      /app.fab            the app, where it is another one than FedSkew's
      /ca.crt, ca.key     the authority; sites get the certificate, nobody the key, which only `renew` needs
      /coordinator.key    signs runs; needed by who starts them, and by nothing on the SuperLink's machine
      /server.crt, .key   what the SuperLink shows
      /superlink/         flwr's state, home and logs; 0700
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

from pydantic import model_validator

from data import DataError, SettingError
from data.agreement import INPUT_KEYS, AgreedInputs, Agreement, read_agreement
from data.readers.catalog import SITES_PREFIX
from data.toml_file import BrokenRule, HostPort, TomlTable, read_toml, table_of
from fedskew.engines import APP
from fedskew.engines.processes import free_port
from fedskew.federation.certificates import (
    check_server,
    write_authority,
    write_private,
    write_server,
)
from fedskew.federation.signing import DECLARED, takes_signature
from site_agent.app_files import app_files, app_hash, packed_app, packed_files
from site_agent.keys import make_key

SECRET_HEADER = "fedskew-control-secret"
"""The header by which the coordinator's commands show the SuperLink that they may read `control_secret`."""


class Coordinator(TomlTable):
    """What coordinator.toml says."""

    address: HostPort
    """By which sites reach it."""
    superlink_port: int
    """The SuperLink's, on the loopback address."""
    listen: str = "0.0.0.0"
    """Address to listen on for sites."""
    largest_message_mib: int = 64
    """The largest request that the door takes. flwr sends arrays in pieces of 5 MB."""
    largest_reply_mib: int = 4096
    """The objects of a site's reply to one message: a model of 500 million float32 parameters, and as much again for
    statistics."""

    @model_validator(mode="after")
    def check(self) -> Self:
        """Raise BrokenRule for ports or limits that cannot be."""
        port, least = self.port, self.largest_message_mib
        if not 0 < self.superlink_port < 65536 or self.superlink_port == port:
            rule = f"must be 1 to 65535, and not {port}"
            raise BrokenRule("superlink-port", rule)
        if least < 1:
            raise BrokenRule("largest-message-mib", "must be at least 1")
        if self.largest_reply_mib < least:
            rule = f"must be at least largest-message-mib = {least}"
            raise BrokenRule("largest-reply-mib", rule)
        return self

    @property
    def host(self) -> str:
        """Name or address by which sites reach it, without the brackets of an IPv6 address."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """Port by which they do."""
        return int(self.address.rpartition(":")[2])


class FederationFolder:
    """A coordinator's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.agreement_file = path / "federation.toml"
        """As people edit it."""
        self.agreed_file = path / "agreed.toml"
        """The copy that is in force; missing until `up`, `serve` or `agree`."""
        self.authority = path / "ca.crt", path / "ca.key"
        """Certificate and key."""
        self.server = path / "server.crt", path / "server.key"
        """Certificate and key of the SuperLink."""
        self.coordinator_key = path / "coordinator.key"
        """Signs runs, where it is kept in the folder."""
        self.own_app = path / "app.fab"
        """Of a federation whose app is not FedSkew's."""
        self.state = path / "superlink"
        self.log = self.state / "superlink.log"
        self.database = self.state / "state.db"
        self.participants = self.state / "participants.json"
        """By run, the names of its sites. All sites take part in a run that is not in it."""

    @property
    def app(self) -> Path:
        """The federation's app: FedSkew's, or the app.fab that `new --app` has kept."""
        return self.own_app if self.own_app.exists() else APP

    @property
    def control_secret(self) -> str:
        """What the SuperLink's control interface asks for: only the coordinator's user can read it."""
        file = self.state / "control.secret"
        if not file.exists():
            self.make_state()
            write_private(file, secrets.token_hex(32).encode())
        return file.read_text()

    def make_state(self) -> None:
        """Make superlink/, which a folder that is restored from a backup lacks, for its owner alone."""
        self.state.mkdir(mode=0o700, exist_ok=True)

    @property
    def text_in_force(self) -> Path:
        """The file of what is in force, or federation.toml while nothing is."""
        return self.agreed_file if self.agreed_file.exists() else self.agreement_file

    @cached_property
    def agreement(self) -> Agreement:
        """What `text_in_force` says. Raises DataError as `read_agreement`."""
        return read_agreement(self.text_in_force)

    @property
    def dataset(self) -> str:
        """How a run's settings name the data of the sites, with the sha256 of the text in force."""
        return f"{SITES_PREFIX}{self.text_in_force.resolve()}#{self.agreement.sha256}"

    @cached_property
    def coordinator(self) -> Coordinator:
        """What coordinator.toml says. Raises DataError for what it cannot say."""
        file = self.path / "coordinator.toml"
        return table_of(Coordinator, read_toml(file)[1], str(file))

    def check(self) -> None:
        """Raise DataError where certificates, agreement or app are not what a federation can start with."""
        check_server(self.server[0], self.authority[0], [self.coordinator.host])
        here = app_hash(app_files(self.app))
        if self.agreement.app != here:
            rule = f"is not the app installed here, {here[:16]}...: all parties agree to one"
            where = str(self.agreement_file)
            raise DataError(rule, where=where, key="app", value=self.agreement.app)

    def require_own_app(self, own: bool) -> None:
        """Raise DataError for a command that is about FedSkew's app, or about another, where it is not."""
        if own == self.own_app.exists():
            return
        reason = "this federation has a Flower app of its own: use `fedskew federation submit`"
        if own:
            reason = "this federation's app is FedSkew's: use `fedskew federation run`"
        raise DataError(reason, where=str(self.path))

    def renew(self, authority_key: Path | None = None) -> None:
        """Make a new key and certificate for the server, for the address of coordinator.toml.

        `authority_key` is the file of the authority's key where that is not kept in the folder.
        """
        certificate, usual_key = self.authority
        authority = certificate, authority_key or usual_key
        write_server([self.coordinator.host], authority, *self.server)

    def set_participants(self, run: int, sites: Sequence[str]) -> None:
        """Save the sites of a run: the door hands out its messages to these alone."""
        entries = self.read_participants()
        entries[str(run)] = sorted(sites)
        write(self.participants, json.dumps(entries).encode())

    def read_participants(self) -> dict[str, list[str]]:
        """Return the sites by run. Raises ValueError for a damaged file: then no run's messages are handed out."""
        if not self.participants.exists():
            return {}
        entries: dict[str, list[str]] = json.loads(self.participants.read_text(encoding="utf-8"))
        return entries


def begin(
    path: Path,
    agreed: Mapping[str, object],
    address: str,
    listen: str,
    app: Path | None = None,
    authority_key: Path | None = None,
    coordinator_key: Path | None = None,
) -> FederationFolder:
    """Make a folder with certificates and a federation.toml that has no sites yet.

    Args:
        path: the federation's folder at its coordinator.
        agreed: what federation.toml says of the federation's name and data, by key.
        address: HOST:PORT at which sites reach it.
        listen: address to listen on for sites.
        app: another Flower app's folder or .fab.
        authority_key: file for the authority's key; ca.key in the folder by default.
        coordinator_key: file for the key that signs runs; coordinator.key in the folder by default. Another Flower app
            has none where its run config has no place for a signature.

    Raises:
        SettingError: something is in the folder, or in a key's place, already; or a key for an app that takes no
            signature. Nothing is written.
        DataError: an address that is none; entries that no reader of federation.toml takes. Nothing is written.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        rule = "must be empty: what is in a federation's folder is never written over"
        raise SettingError("FOLDER", str(path), rule)
    keys = {"--authority-key": authority_key, "--coordinator-key": coordinator_key}
    for option, file in keys.items():
        if file is not None and (file.exists() or authority_key == coordinator_key):
            raise SettingError(option, str(file), "must be a new file, and another for each key")
        if file is not None and not file.parent.is_dir():  # as of a medium that is not mounted
            raise SettingError(option, str(file), f"there is no folder {file.parent}")
    folder = FederationFolder(path)
    reached = {"address": address, "listen": listen, "superlink-port": free_port()}
    coordinator = table_of(Coordinator, reached, "--address")
    fab = b"" if app is None else packed_app(app)
    files = packed_files(fab, str(app)) if fab else app_files(APP)
    entries = {**agreed, "app": app_hash(files)}
    # Checked before the first site is known, so that no coordinator writes a file that none can read.
    inputs = {key: entries[key] for key in ("name", *INPUT_KEYS) if key in entries}
    table_of(AgreedInputs, inputs, str(folder.agreement_file))
    is_signed = takes_signature(files)
    if coordinator_key is not None and not is_signed:
        rule = f"has no effect: the app needs {DECLARED} under [tool.flwr.app.config]"
        raise SettingError("--coordinator-key", str(coordinator_key), rule)

    path.mkdir(parents=True, exist_ok=True)
    folder.make_state()
    if is_signed:
        entries["run-key"] = make_key(coordinator_key or folder.coordinator_key)
    if fab:
        folder.own_app.write_bytes(fab)
    folder.agreement_file.write_text(lines_of(entries), encoding="utf-8")
    (path / "coordinator.toml").write_text(lines_of(reached), encoding="utf-8")
    authority = folder.authority[0], authority_key or folder.authority[1]
    write_authority(str(agreed["name"]), *authority)
    write_server([coordinator.host], authority, *folder.server)
    return folder


def write(file: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    draft = file.with_name(f"{file.name}.tmp")
    draft.write_bytes(content)
    draft.replace(file)


def lines_of(entries: Mapping[str, object]) -> str:
    """Return one line of TOML per entry, whose texts, numbers and lists of them are written as in JSON."""
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in entries.items()]
    return "".join(lines)
