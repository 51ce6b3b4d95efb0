"""site.toml: the one file at a hospital that names paths, device, threads and what may leave."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from client_app.local_site import DEFAULT_PERMISSIONS, PERMISSIONS, NotAgreed
from data import DataError, DataSettings, SettingError
from data.agreement import Agreement, read_agreement
from data.readers.catalog import labels_file
from data.settings import OF_OWN, USUAL
from data.text import is_whole
from data.toml_file import did_you_mean, read_toml
from site_agent.audit import Audit

KEYS = (
    "federation",
    "name",
    "data",
    "state",
    "device",
    "threads",
    "mask-key",
    "weights",
    "module",
    "read",
    "policy",
    "link",
    "app",
)
NOT_OF_AN_APP = ("device", "mask-key", "weights", "module", "read", "policy")
"""Keys of site.toml that are about FedSkew's own app, and have no meaning for another one."""
MASK_KEY = "mask.key"
"""The file of the key for masked sums, beside site.toml, where that names no other."""
DATA = ("folder", "npz", "csv")
DEVICES = ("cpu", "cuda", "auto")
KINDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}
RUN = re.compile(r"[A-Za-z0-9](?:\.?[A-Za-z0-9+_-]){0,199}")
"""A run's id, which names a folder at a site. The method MODULE:CLASS has a full stop in it, and `..` is no id."""


@dataclass(frozen=True)
class AppPolicy:
    """What may leave a site in the replies of a Flower app other than FedSkew's."""

    arrays: tuple[str, ...] = ("arrays",)
    """Names of the ArrayRecords that may leave; `*` stands for any characters, as in `upload/*`."""
    metrics: tuple[str, ...] = ("metrics",)
    """Names of the MetricRecords."""
    configs: tuple[str, ...] = ()
    """Names of the ConfigRecords."""
    max_bytes: int = 0
    """Most bytes of a reply; 0 is no limit."""
    max_norm: float = 0.0
    """Largest norm of the change of the received arrays, or of arrays that none were received for; 0 is no limit."""
    min_samples: int = 8
    """Samples below which a reply to train or evaluate does not leave, by its metric num-examples."""
    node_config: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    """Entries of the app's context.node_config, beside data-path."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """[policy] of site.toml: what may leave a site, and which runs it takes part in."""

    allow: frozenset[str] = frozenset(DEFAULT_PERMISSIONS)
    """What of PERMISSIONS may leave."""
    min_class_samples: int = 1
    """Training samples of a class held, below which nothing about classes leaves."""
    min_test_samples: int = 1
    """Test samples below which no scores leave."""
    max_norm: float = 0.0
    """Largest norm of an update that leaves; 0 is no limit."""
    min_batch_size: int = 8
    """Samples in a mini-batch below which a run is refused: the step of a single image is that image."""
    min_steps: int = 1
    """Optimizer steps in a round below which a run is refused."""
    min_update_samples: int = 8
    """Different training samples in an update below which a run is refused."""
    methods: tuple[str, ...] | None = None
    """The local methods that a run may use, names of client_app.variants; None is all of them."""
    models: tuple[str, ...] | None = None
    """The models that a run may train, names of client_app.models; None is all of them."""
    max_rounds: int = 1000
    """Rounds that a run may have, and different questions to train that are answered in it."""
    approve_runs: bool = False
    """Whether a run takes part only after somebody here has approved its settings."""


@dataclass(frozen=True, kw_only=True)
class Site(Limits):
    """One site, as its site.toml says."""

    name: str
    number: int
    """Its number in the agreement."""
    agreement: Agreement
    """The one that the site has approved."""
    data: str
    """folder:PATH, npz:PATH or csv:PATH."""
    state: Path
    """Folder of its memory and cache, which belong to nobody else."""
    device: str = "cpu"
    threads: int = 1
    reading: DataSettings = USUAL
    """How its data are read: of these, the settings of OF_OWN count."""
    app: AppPolicy | None = None
    """The policy for another app than FedSkew's; None is FedSkew's."""
    mask_key: Path = Path(MASK_KEY)
    """The file of its private key for masked sums."""
    weights: Path | None = None
    """The site's own file of the agreed backbone's weights."""
    module: Path | None = None
    """The site's own file of the agreed module."""

    @property
    def audit(self) -> Audit:
        """The site's audit log."""
        return Audit(self.state / "audit.jsonl")

    @property
    def approved(self) -> Path:
        """The folder of what is approved: federation.toml, app.fab and approval.json; runs/ has single runs."""
        return self.state / "approved"

    @property
    def cache(self) -> Path:
        """The folder of the memory-mapped copy of the data."""
        return self.state / "cache"

    def run_folder(self, run: str) -> Path:
        """Return the folder of a run's memory. Raises NotAgreed for what is no run's id."""
        if not RUN.fullmatch(run):
            raise NotAgreed(f"folder {run!r} is no run's id")
        return self.state / "runs" / run


@dataclass(frozen=True)
class Link:
    """How a site reaches its coordinator; who trains alone needs none of it."""

    address: str
    """HOST:PORT."""
    key: Path
    """The file of the node's private key."""
    ca: Path
    """The file of the federation's certificate authority."""


class SiteTable:
    """site.toml, or a table of it. Its paths start at the file's folder."""

    def __init__(
        self, entries: Mapping[str, Any], file: Path, keys: Sequence[str], name: str = ""
    ) -> None:
        """Raises DataError for a key that is none of `keys`."""
        self.entries = entries
        self.file = file
        self.where = f"{file}: {name}" if name else str(file)
        for key, value in entries.items():
            if key not in keys:
                raise self.error(key, value, "there is no such key", did_you_mean(key, keys))

    def error(self, key: str, value: object, rule: str, remedy: str = "") -> DataError:
        """Return the error of a value that breaks a rule."""
        return DataError(rule, where=self.where, key=key, value=value, remedy=remedy)

    def require(self, holds: bool, key: str, rule: str) -> None:
        """Raise DataError about a key's value unless `holds`."""
        if not holds:
            raise self.error(key, self.entries.get(key), rule)

    def take(self, key: str, expected: type, default: Any = None) -> Any:
        """Return a key's value, or the default where that is not None. Raises DataError for a missing or wrong one."""
        if key not in self.entries:
            if default is None:
                rule = f"is missing: it must be {KINDS[expected]}"
                raise DataError(rule, where=self.where, key=key)
            return default
        value = self.entries[key]
        if expected is float and type(value) is int:
            value = float(value)
        self.require(type(value) is expected, key, f"must be {KINDS[expected]}")
        return value

    def table(
        self, name: str, keys: Sequence[str], default: Mapping[str, Any] | None = None
    ) -> "SiteTable":
        """Return the table of this name. Raises DataError for a key that is none of `keys`."""
        return SiteTable(self.take(name, dict, default), self.file, keys, name)

    def path(self, key: str, text: str = "") -> Path:
        """Return the absolute path that `text` names, or else the key.

        Raises DataError for one with `..`, or that no file can have.
        """
        named = text or self.take(key, str)
        self.require(bool(named.strip()), key, "must name a path")
        self.require(".." not in Path(named).parts, key, "must not hold ..")
        try:
            absolute = self.file.resolve().parent / Path(named).expanduser()
            absolute.resolve().exists()
        except (OSError, RuntimeError, ValueError) as error:  # too long, nobody's home, a zero byte
            reason = getattr(error, "strerror", None) or error
            raise self.error(key, named[:80], f"is no path here ({reason})") from None
        return absolute

    def existing_file(self, key: str) -> Path:
        """Return the absolute path of a key's file. Raises DataError where there is none."""
        file = self.path(key)
        self.require(file.is_file(), key, f"there is no such file: {file}")
        return file

    def values(self, defaults: AppPolicy | Limits) -> dict[str, Any]:
        """Return the fields of `defaults` that this table has values for. Raises DataError for one of another kind."""
        values = {}
        for key in self.entries:
            name = field_of(key)
            values[name] = self.value(key, getattr(defaults, name))
        return values

    def value(self, key: str, default: object) -> object:
        """Return a key's value of the kind of its default: a switch, a number with a limit, a table or texts."""
        if isinstance(default, bool):
            return self.take(key, bool)
        if isinstance(default, int | float):
            number = self.take(key, type(default))
            least, rule = (
                (1, "must be at least 1") if default else (0, "must be 0 (no limit) or more")
            )
            self.require(least <= number < float("inf"), key, rule)
            return number
        if isinstance(default, dict):
            table = self.take(key, dict)
            are_plain = all(type(value) in (str, int, float, bool) for value in table.values())
            self.require(are_plain, key, "must hold texts, numbers, true and false")
            return table
        texts = self.take(key, list)
        all_texts = all(type(text) is str for text in texts)
        self.require(all_texts, key, "must be a list of texts")
        self.require(len(set(texts)) == len(texts), key, "must name each once")
        return frozenset(texts) if isinstance(default, frozenset) else tuple(texts)


def table_of(file: Path) -> SiteTable:
    """Return the table that is site.toml. Raises DataError for an unknown key."""
    return SiteTable(read_toml(file)[1], file, KEYS)


def keys_of(kind: type) -> list[str]:
    """Return the keys of the table that a dataclass stands for."""
    return [field.name.replace("_", "-") for field in fields(kind)]


def field_of(key: str) -> str:
    """Return the name of the field that a key stands for."""
    return key.replace("-", "_")


def read_site(path: Path) -> Site:
    """Return what site.toml says. Raises DataError, one sentence, for what a site cannot be run with.

    Nothing is made, and of the data only that they are there is looked at.
    """
    table = table_of(path)
    agreement = read_agreement(table.path("federation"))
    name = table.take("name", str)
    try:
        number = agreement.number(name)
    except LookupError as error:
        raise table.error("name", name, str(error)) from None
    state = table.path("state")
    table.require(not state.exists() or state.is_dir(), "state", "must be a folder")
    kind, data = data_of(table)
    is_inside = data.resolve().is_relative_to(state.resolve())
    rule = f"must not lie below state = {table.entries.get('state')!r}, which is deleted"
    table.require(not is_inside, "data", rule)
    device = table.take("device", str, "cpu")
    threads = table.take("threads", int, 1)
    table.require(device in DEVICES, "device", f"must be one of {', '.join(DEVICES)}")
    table.require(1 <= threads <= 1024, "threads", "must be 1 to 1024")
    policy = table.table("policy", keys_of(Limits), {})
    limits = policy.values(Limits())
    for word in sorted(limits.get("allow", set()) - {*PERMISSIONS}):
        raise policy.error("allow", word, f"must be some of {', '.join(PERMISSIONS)}")
    files: dict[str, Any] = {}
    for key in {"weights", "module"} & table.entries.keys():
        files[key] = table.path(key)
    return Site(
        name=name,
        number=number,
        agreement=agreement,
        data=f"{kind}:{data}",
        state=state,
        device=device,
        threads=threads,
        reading=reading_of(table),
        app=app_policy(table),
        mask_key=table.path("mask-key", table.take("mask-key", str, MASK_KEY)),
        **files,
        **limits,
    )


def data_of(table: SiteTable) -> tuple[str, Path]:
    """Return the kind of the site's data and their absolute path. Raises DataError for a path that is not there."""
    kind, _, named = table.take("data", str).partition(":")
    rule = "must be folder:PATH, npz:PATH or csv:PATH"
    table.require(kind in DATA and bool(named.strip()), "data", rule)
    path = table.path("data", named)
    is_there = path.is_dir() if kind == "folder" else path.is_file()
    table.require(is_there, "data", f"there is no {path}")
    return kind, path


def reading_of(table: SiteTable) -> DataSettings:
    """Return how the data are read, settings of OF_OWN. Raises DataError for what they do not allow."""
    read = table.table("read", [DataSettings.key(field) for field in OF_OWN], {})
    settings: dict[str, Any] = {}
    for key in read.entries:
        name = field_of(key)
        settings[name] = read.take(key, type(getattr(USUAL, name)))
    if labels_file(settings.get("labels", "")) is not None:
        settings["labels"] = str(read.existing_file("labels"))
    try:
        return DataSettings(**settings)
    except SettingError as error:
        raise DataError(error.rule, where=read.where, key=error.key, value=error.value) from None


def app_policy(table: SiteTable) -> AppPolicy | None:
    """Return what [app] says, if it is there. Raises DataError for a key that has no meaning beside it."""
    if "app" not in table.entries:
        return None
    for key in NOT_OF_AN_APP:
        rule = "has no effect on another app than FedSkew's: remove it, or [app]"
        table.require(key not in table.entries, key, rule)
    app = table.table("app", keys_of(AppPolicy))
    return AppPolicy(**app.values(AppPolicy()))


def read_link(path: Path) -> Link:
    """Return what site.toml says of the link. Raises DataError for what it does not say, or a missing file."""
    link = table_of(path).table("link", keys_of(Link))
    address = link.take("address", str)
    host, _, port = address.rpartition(":")
    link.require(bool(host) and is_whole(port), "address", "must be HOST:PORT")
    return Link(address, link.existing_file("key"), link.existing_file("ca"))


def read_sites(folder: Path) -> dict[int, Site]:
    """Return the sites of FOLDER/*/site.toml by number: all of one federation, as a rehearsal runs them.

    Raises DataError for a site that is missing or there twice, or of another federation than the first.
    """
    sites: dict[int, Site] = {}
    for file in sorted(folder.glob("*/site.toml")):
        site = read_site(file)
        if any(site.agreement != other.agreement for other in sites.values()):
            rule = "is another text than that of the folders before"
            raise DataError(rule, where=str(file), key="federation")
        if site.number in sites:
            rule = "is another folder's site as well"
            raise DataError(rule, where=str(file), key="name", value=site.name)
        sites[site.number] = site
    if not sites:
        raise DataError("holds no */site.toml", where=str(folder))
    agreed = sites[min(sites)].agreement.names
    missing = [name for number, name in enumerate(agreed) if number not in sites]
    if missing:
        raise DataError(f"holds no site.toml of {', '.join(missing)}", where=str(folder))
    return dict(sorted(sites.items()))
