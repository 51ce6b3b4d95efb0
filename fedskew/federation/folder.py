"""A federation's folder at its coordinator: its files, its creation, and the addition of sites.

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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from data import DataError, SettingError, require
from data.agreement import (
    INPUT_KEYS,
    Agreement,
    Member,
    agreed_inputs,
    members_of,
    read_agreement,
)
from data.readers.catalog import SITES_PREFIX
from data.text import is_whole
from data.toml_file import Table, parse_toml, read_toml
from fedskew.engines import APP
from fedskew.engines.processes import free_port
from fedskew.federation.certificates import (
    check_server,
    write_authority,
    write_private,
    write_server,
)
from fedskew.federation.coordinator_key import DECLARED, make_key, takes_signature
from site_agent.app_files import app_files, app_hash, packed_app, packed_files

DATABASE = "state.db"
"""The SuperLink's database, below `state`."""
SECRET_HEADER = "fedskew-control-secret"
"""The header by which the coordinator's commands show the SuperLink that they may read `control_secret`."""
LARGEST_REPLY_MIB = 4096
"""Usual limit on a site's reply: a model of 500 million float32 parameters, and as much again for statistics."""
COORDINATOR_KEYS = (
    "address",
    "listen",
    "superlink-port",
    "largest-message-mib",
    "largest-reply-mib",
)


@dataclass(frozen=True)
class Coordinator:
    """What coordinator.toml says."""

    host: str
    """Name or address by which sites reach it."""
    port: int
    """Port by which they do."""
    listen: str
    """Address to listen on for sites."""
    superlink_port: int
    """The SuperLink's, on the loopback address."""
    largest_message: int
    """Bytes of the largest request that the door takes."""
    largest_reply: int
    """Bytes of the objects of a site's reply to one message."""


@dataclass(frozen=True)
class FederationFolder:
    """A coordinator's folder."""

    path: Path

    @property
    def agreement_file(self) -> Path:
        """federation.toml, as people edit it."""
        return self.path / "federation.toml"

    @property
    def agreed_file(self) -> Path:
        """The copy of federation.toml that is in force; missing until `up` or `agree`."""
        return self.path / "agreed.toml"

    @property
    def authority(self) -> tuple[Path, Path]:
        """Certificate and key of the authority."""
        return self.path / "ca.crt", self.path / "ca.key"

    @property
    def server(self) -> tuple[Path, Path]:
        """Certificate and key of the SuperLink."""
        return self.path / "server.crt", self.path / "server.key"

    @property
    def coordinator_key(self) -> Path:
        """The key that signs runs, where it is kept in the folder."""
        return self.path / "coordinator.key"

    @property
    def app(self) -> Path:
        """The federation's app: FedSkew's, or the app.fab that `new --app` has kept."""
        return self.own_app if self.own_app.exists() else APP

    @property
    def own_app(self) -> Path:
        """app.fab, of a federation whose app is not FedSkew's."""
        return self.path / "app.fab"

    @property
    def state(self) -> Path:
        """The folder of flwr's state, home and logs."""
        return self.path / "superlink"

    @property
    def control_secret(self) -> str:
        """What the SuperLink's control interface asks for: only the coordinator's user can read it."""
        file = self.state / "control.secret"
        if not file.exists():
            write_private(file, secrets.token_hex(32).encode())
        return file.read_text()

    @cached_property
    def agreement(self) -> Agreement:
        """What is in force, or what federation.toml says while nothing is. Raises DataError as `read_agreement`."""
        return read_agreement(self.text_in_force)

    @property
    def text_in_force(self) -> Path:
        """The file of what is in force, or federation.toml while nothing is."""
        return self.agreed_file if self.agreed_file.exists() else self.agreement_file

    @property
    def dataset(self) -> str:
        """How a run's settings name the data of the sites, with the sha256 of the text in force."""
        return f"{SITES_PREFIX}{self.text_in_force.resolve()}#{self.agreement.sha256}"

    @cached_property
    def coordinator(self) -> Coordinator:
        """What coordinator.toml says. Raises DataError for what it cannot say."""
        file = self.path / "coordinator.toml"
        table = Table(read_toml(file)[1], str(file), COORDINATOR_KEYS)
        host, port = host_and_port(table.take("address", str), str(file))
        superlink_port = table.take("superlink-port", int)
        is_port = 0 < superlink_port < 65536 and superlink_port != port
        table.require(is_port, "superlink-port", f"must be 1 to 65535, and not {port}")
        # flwr sends arrays in pieces of 5 MB.
        largest_mib = table.take("largest-message-mib", int, 64)
        table.require(largest_mib > 0, "largest-message-mib", "must be at least 1")
        largest_reply_mib = table.take("largest-reply-mib", int, LARGEST_REPLY_MIB)
        rule = f"must be at least largest-message-mib = {largest_mib}"
        table.require(largest_reply_mib >= largest_mib, "largest-reply-mib", rule)
        return Coordinator(
            host=host,
            port=port,
            listen=table.take("listen", str, "0.0.0.0"),
            superlink_port=superlink_port,
            largest_message=largest_mib * 2**20,
            largest_reply=largest_reply_mib * 2**20,
        )

    def check(self) -> None:
        """Raise DataError where certificates, agreement or app are not what a federation can start with."""
        check_server(self.server[0], self.authority[0], [self.coordinator.host])
        here = app_hash(app_files(self.app))
        if self.agreement.app != here:
            raise DataError(
                f"the app installed here is {here[:16]}...; all parties have to agree to one",
                where=str(self.agreement_file),
                key="app",
                value=f"{self.agreement.app[:16]}...",
            )

    def require_own_app(self, own: bool) -> None:
        """Raise DataError for a command that is about FedSkew's app, or about another, where it is not."""
        has_own_app = self.own_app.exists()
        if own and not has_own_app:
            reason = "this federation's app is FedSkew's: use `fedskew federation run`"
            raise DataError(reason, where=str(self.path))
        if not own and has_own_app:
            reason = "this federation has a Flower app of its own: use `fedskew federation submit`"
            raise DataError(reason, where=str(self.path))

    def renew(self, authority_key: Path | None = None) -> None:
        """Make a new key and certificate for the server, for the address of coordinator.toml.

        `authority_key` is the file of the authority's key where that is not kept in the folder.
        """
        certificate, usual_key = self.authority
        authority = certificate, authority_key or usual_key
        hosts = [self.coordinator.host]
        write_server(self.agreement_name, hosts, authority, *self.server)

    @property
    def agreement_name(self) -> str:
        """The federation's name, of an agreement whose sites may not be complete yet."""
        return str(read_toml(self.agreement_file)[1].get("name", "federation"))


def host_and_port(address: str, where: str) -> tuple[str, int]:
    """Return the parts of HOST:PORT. Raises DataError for what is none."""
    host, _, port = address.rpartition(":")
    is_port = is_whole(port) and 0 < int(port) < 65536
    if not host or not is_port:
        raise DataError("must be HOST:PORT", where=where, key="address", value=address)
    without_brackets = host.strip("[]")  # an IPv6 address has them
    return without_brackets, int(port)


def begin(
    path: Path, name: str, classes: Sequence[str], shape: str, mean: Sequence[float], std: Sequence[float],
    min_sites: int | None, address: str, listen: str, app: Path | None = None, authority_key: Path | None = None,
    coordinator_key: Path | None = None, columns: Sequence[str] = (),
) -> FederationFolder:  # fmt: skip
    """Make a folder with certificates and a federation.toml that has no sites yet.

    Args:
        path: the federation's folder at its coordinator.
        name: of the federation.
        classes: their names in order; with `app` they and `shape` may be empty: the file says nothing of the data then.
        shape: of an input.
        mean: of the inputs on the scale 0..1, a number or one per channel. Of a table mean and std may be empty: sums
            over all sites decide.
        std: their standard deviation.
        min_sites: smallest number of sites in a round; without it the file leaves it out: more than half of the sites.
        address: HOST:PORT at which sites reach it.
        listen: address to listen on for sites.
        app: another Flower app's folder or .fab.
        authority_key: file for the authority's key; ca.key in the folder by default.
        coordinator_key: file for the key that signs runs; coordinator.key in the folder by default. Another Flower app
            has none where its run config has no place for a signature.
        columns: names of a table's input columns in order; empty for images, and where the order alone counts.

    Raises:
        SettingError: something is in the folder, or in a key's place, already; or a key for an app that takes no
            signature. Nothing is written.
        DataError: an address that is none; classes, a shape or a scale that no reader of federation.toml takes.
            Nothing is written.
    """
    rule = "must be empty: what is in a federation's folder is never written over"
    require_empty("FOLDER", path, rule)
    require_new_keys(authority_key, coordinator_key)
    host, _ = host_and_port(address, "--address")
    folder = FederationFolder(path)
    fab = b""
    files = app_files(APP)
    if app is not None:
        fab = packed_app(app)
        files = packed_files(fab, str(app))
    agreed: dict[str, object] = {
        "name": name,
        "classes": list(classes),
        "input-shape": shape,
        **({"input-columns": list(columns)} if columns else {}),
        **({"mean": list(mean)} if mean else {}),
        **({"std": list(std)} if std else {}),
        "app": app_hash(files),
    }
    if fab and not classes and not shape:
        for key in INPUT_KEYS:
            agreed.pop(key, None)
    if min_sites is not None:
        # Without it `read_agreement` takes more than half of the sites that there are by then.
        agreed["min-sites"] = min_sites
    agreed_inputs(agreed, folder.agreement_file)
    is_signed = takes_signature(files)
    if coordinator_key is not None:
        rule = f"has no effect: the app needs {DECLARED} under [tool.flwr.app.config]"
        require(is_signed, "--coordinator-key", str(coordinator_key), rule)
    path.mkdir(parents=True, exist_ok=True)
    folder.state.mkdir(mode=0o700)
    if is_signed:
        agreed["run-key"] = make_key(coordinator_key or folder.coordinator_key)
    coordinator: dict[str, object] = {
        "address": address,
        "listen": listen,
        "superlink-port": free_port(),
    }
    if fab:
        folder.own_app.write_bytes(fab)
    folder.agreement_file.write_text(lines_of(agreed), encoding="utf-8")
    (path / "coordinator.toml").write_text(lines_of(coordinator), encoding="utf-8")
    certificate, usual_key = folder.authority
    key_file = authority_key or usual_key
    write_authority(name, certificate, key_file)
    write_server(name, [host], (certificate, key_file), *folder.server)
    return folder


def require_new_keys(authority_key: Path | None, coordinator_key: Path | None) -> None:
    """Raise SettingError where a key would be written over another file, or over the other key."""
    for option, file in (
        ("--authority-key", authority_key),
        ("--coordinator-key", coordinator_key),
    ):
        if file is not None:
            require(not file.exists(), option, str(file), "is there already")
    is_same = coordinator_key is not None and coordinator_key == authority_key
    rule = "must be another file than --authority-key"
    require(not is_same, "--coordinator-key", str(coordinator_key), rule)


def add_site(
    folder: FederationFolder,
    name: str,
    key: str,
    samples: int | None = None,
    mask_key: str = "",
) -> Member:
    """Write a site into federation.toml, under the next number; `samples` is what it may state at most.

    `mask_key` is its key for masked sums, if it has one.

    Raises DataError for a name or a key that the agreement could not hold; the file is then as it was.
    """
    file = folder.agreement_file
    content, entries = read_toml(file)
    before, known = content.decode(), entries.get("site", [])
    member: dict[str, object] = {"name": name, "key": key.strip()}
    if mask_key:
        member["mask-key"] = mask_key
    if samples is not None:
        member["samples"] = samples
    text = f"{before.rstrip()}\n\n[[site]]\n{lines_of(member)}"

    # The text is checked before it is written. It may still hold fewer sites than an agreement needs.
    sites = members_of(parse_toml(text.encode(), str(file)), file)
    assert len(sites) == len(known) + 1
    draft = file.with_name(file.name + ".tmp")
    draft.write_text(text, encoding="utf-8")
    draft.replace(file)
    return sites[-1]


def require_empty(key: str, path: Path, rule: str) -> None:
    """Raise SettingError, which names a key and a rule, where `path` is there and no empty folder."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise SettingError(key, str(path), rule)


def lines_of(entries: dict[str, object]) -> str:
    """Return one line of TOML per entry, whose texts, numbers and lists of them are written as in JSON."""
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in entries.items()]
    return "".join(lines)
