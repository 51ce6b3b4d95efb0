"""site.toml: the one file at a hospital that names paths, device, threads and what may leave."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from client_app.local_site import DEFAULT_PERMISSIONS, PERMISSIONS, NotAgreed
from data import DataError, DataSettings, SettingError
from data.agreement import Agreement, read_agreement
from data.readers.catalog import KNOWN, labels_file
from data.settings import OF_OWN, USUAL
from data.sites import abide_name
from data.text import is_whole
from data.toml_file import Table, read_toml
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
DATA = ("folder", "npz", "csv", "abide")
DEVICES = ("cpu", "cuda", "auto")
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
    """folder:PATH, npz:PATH, csv:PATH or abide:FOLDER/SITE."""
    state: Path
    """Folder of its memory and cache, which belong to nobody else."""
    device: str = "cpu"
    threads: int = 1
    reading: DataSettings = USUAL
    """How its data are read: of these, the settings of OF_OWN count."""
    app: AppPolicy | None = None
    """The policy for another app than FedSkew's; None is FedSkew's."""
    node_config: Mapping[str, str | int | float | bool] = field(
        default_factory=dict[str, str | int | float | bool], hash=False
    )
    """Entries of another app's context.node_config, beside data-path."""
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


def read_site(path: Path) -> Site:
    """Return what site.toml says. Raises DataError, one sentence, for what a site cannot be run with.

    Relative paths start at the file's folder. Nothing is made, and of the data only that they are there is looked at.
    """
    table = table_of(path)
    agreement = read_agreement(path_in(table, path, "federation"))
    name = table.take("name", str)
    try:
        number = agreement.number(name)
    except LookupError as error:
        raise table.error("name", name, str(error)) from None
    state = path_in(table, path, "state")
    data = data_of(table, path)
    table.require(not state.exists() or state.is_dir(), "state", "must be a folder")
    _, _, data_path = data.partition(":")
    is_inside = Path(data_path).resolve().is_relative_to(state.resolve())
    rule = f"must not lie below state = {table.entries.get('state')!r}, which is deleted"
    table.require(not is_inside, "data", rule)
    device = table.take("device", str, "cpu")
    threads = table.take("threads", int, 1)
    table.require(device in DEVICES, "device", f"must be one of {', '.join(DEVICES)}")
    table.require(1 <= threads <= 1024, "threads", "must be 1 to 1024")
    policy = Table(table.take("policy", dict, {}), f"{path}: policy", keys_of(Limits))
    limits = values_of(policy, Limits)
    for word in sorted(limits.get("allow", set()) - {*PERMISSIONS}):
        raise policy.error("allow", word, f"must be some of {', '.join(PERMISSIONS)}")
    files: dict[str, Any] = {}
    for key in ("weights", "module"):
        if key in table.entries:
            files[key] = path_in(table, path, key)
    return Site(
        name=name,
        number=number,
        agreement=agreement,
        data=data,
        state=state,
        device=device,
        threads=threads,
        reading=reading_of(table, path, data),
        **app_policy(table, path),
        mask_key=path_in(table, path, "mask-key", MASK_KEY),
        **files,
        **limits,
    )


def keys_of(kind: type) -> list[str]:
    """Return the keys of the table that a dataclass stands for: its fields' names with `-` for `_`."""
    return [field.name.replace("_", "-") for field in fields(kind)]


def values_of(table: Table, kind: type) -> dict[str, Any]:
    """Return the fields that a table gives values. Raises DataError for a value that is not of the default's kind."""
    values: dict[str, Any] = {}
    for key in keys_of(kind):
        if key in table.entries:
            name = key.replace("-", "_")
            values[name] = value_of(table, key, getattr(kind, name))
    return values


def value_of(table: Table, key: str, default: object) -> object:
    """Return a key's value of the kind that its default has: a switch, a number with a limit, or a list of texts."""
    if isinstance(default, bool):
        return table.take(key, bool)
    if isinstance(default, int | float):
        number = table.take(key, type(default))
        least, rule = (1, "must be at least 1") if default else (0, "must be 0 (no limit) or more")
        table.require(least <= number < float("inf"), key, rule)
        return number
    texts = table.texts(key)
    return frozenset(texts) if isinstance(default, frozenset) else texts


def app_policy(table: Table, path: Path) -> dict[str, Any]:
    """Return the fields of a site that [app] is. Raises DataError for what cannot be, or has no meaning beside it."""
    if "app" not in table.entries:
        return {}
    for key in NOT_OF_AN_APP:
        rule = "has no effect on another app than FedSkew's: remove it, or [app]"
        table.require(key not in table.entries, key, rule)
    keys = [*keys_of(AppPolicy), "node-config"]
    app = Table(table.take("app", dict), f"{path}: app", keys)
    node_config = app.take("node-config", dict, {})
    are_plain = all(type(value) in (str, int, float, bool) for value in node_config.values())
    app.require(are_plain, "node-config", "must hold texts, numbers, true and false")
    return {"app": AppPolicy(**values_of(app, AppPolicy)), "node_config": node_config}


def read_link(path: Path) -> Link:
    """Return what site.toml says of the link. Raises DataError for what it does not say, or a missing file."""
    link = Table(table_of(path).take("link", dict), f"{path}: link", keys_of(Link))
    files = {key: path_in(link, path, key) for key in ("key", "ca")}
    for key, file in files.items():
        link.require(file.is_file(), key, f"there is no such file: {file}")
    address = link.take("address", str)
    host, _, port = address.rpartition(":")
    link.require(bool(host) and is_whole(port), "address", "must be HOST:PORT")
    return Link(address, **files)


def read_sites(folder: Path) -> dict[int, Site]:
    """Return the sites of FOLDER/*/site.toml by number: all of one federation, as a rehearsal runs them.

    Raises DataError for a site that is missing or there twice, or of another federation than the first.
    """
    sites: dict[int, Site] = {}
    files = sorted(folder.glob("*/site.toml"))
    for file in files:
        site = read_site(file)
        if sites and site.agreement != next(iter(sites.values())).agreement:
            rule = f"is another text than that of {files[0]}"
            raise DataError(rule, where=str(file), key="federation")
        if site.number in sites:
            rule = "is another folder's site as well"
            raise DataError(rule, where=str(file), key="name", value=site.name)
        sites[site.number] = site
    if not sites:
        raise DataError("holds no */site.toml", where=str(folder))
    names = enumerate(site.agreement.names)
    if missing := [name for number, name in names if number not in sites]:
        raise DataError(f"holds no site.toml of {', '.join(missing)}", where=str(folder))
    return dict(sorted(sites.items()))


def table_of(path: Path) -> Table:
    """Return the file's table. Raises DataError for an unknown key."""
    return Table(read_toml(path)[1], str(path), KEYS)


def path_in(table: Table, path: Path, key: str, default: str | None = None) -> Path:
    """Return a key's absolute path, from the file's folder. Raises DataError for a path with `..`."""
    value = table.take(key, str, default)
    table.require(bool(value.strip()), key, "must name a path")
    return absolute_path(table, path, key, value)


def absolute_path(table: Table, path: Path, key: str, value: str) -> Path:
    """Return an absolute path, from a file's folder. Raises DataError for one with `..`, or that no file can have."""
    table.require(".." not in Path(value).parts, key, "must not hold ..")
    try:
        absolute = path.resolve().parent / Path(value).expanduser()
        absolute.resolve().exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long, nobody's home, a zero byte
        reason = getattr(error, "strerror", None) or error
        raise table.error(key, value[:80], f"is no path here ({reason})") from None
    return absolute


def data_of(table: Table, path: Path) -> str:
    """Return where the site's data are, with the absolute path. Raises DataError for a path that is not there."""
    kind, colon, rest = table.take("data", str).partition(":")
    rule = "must be folder:PATH, npz:PATH, csv:PATH or abide:FOLDER/SITE"
    table.require(kind in DATA and bool(colon) and bool(rest.strip()), "data", rule)
    absolute = absolute_path(table, path, "data", rest)
    if kind == "abide":
        folder = absolute.parent
        table.require(folder.is_dir(), "data", f"there is no {folder}")
        is_site = abide_name(absolute.name) in KNOWN
        table.require(is_site, "data", f"{absolute.name} is no site of ABIDE")
    else:
        is_there = absolute.is_dir() if kind == "folder" else absolute.is_file()
        table.require(is_there, "data", f"there is no {absolute}")
    return f"{kind}:{absolute}"


def reading_of(table: Table, path: Path, data: str) -> DataSettings:
    """Return how the data are read, settings of OF_OWN. Raises DataError for what they do not allow."""
    where = f"{path}: read"
    keys = {DataSettings.key(field): field for field in OF_OWN}
    read = Table(table.take("read", dict, {}), where, tuple(keys))
    settings: dict[str, Any] = {}
    for key in read.entries:
        settings[keys[key]] = read.take(key, type(getattr(USUAL, keys[key])))
    table_of_labels = labels_file(settings.get("labels", ""))
    if table_of_labels is not None:
        absolute = absolute_path(read, path, "labels", settings["labels"])
        read.require(absolute.is_file(), "labels", f"there is no {absolute}")
        settings["labels"] = str(absolute)
    if settings and data.startswith("abide:"):
        raise table.error("data", table.entries["data"], "is read in one way: [read] has no effect")
    try:
        return DataSettings(**settings)
    except SettingError as error:
        raise DataError(error.rule, where=where, key=error.key, value=error.value) from None
