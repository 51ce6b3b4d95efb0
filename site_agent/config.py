"""site.toml: the one file at a hospital that names paths, device, threads and what may leave."""

import re
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    create_model,
    model_validator,
)

from client_app.local_site import DEFAULT_PERMISSIONS, PERMISSIONS, NotAgreed
from data import DataError, DataSettings, SettingError
from data.agreement import Agreement, read_agreement
from data.readers.catalog import labels_file
from data.settings import OF_OWN, USUAL
from data.toml_file import BrokenRule, HostPort, Texts, TomlTable, read_toml, table_of
from site_agent.audit import Audit

NOT_OF_AN_APP = ("device", "mask-key", "weights", "module", "read", "policy")
"""Keys of site.toml that are about FedSkew's own app, and have no meaning for another one."""
MASK_KEY = "mask.key"
"""The file of the key for masked sums, beside site.toml, where that names no other."""
DATA = ("folder", "npz", "csv")
RUN = re.compile(r"[A-Za-z0-9](?:\.?[A-Za-z0-9+_-]){0,199}")
"""A run's id, which names a folder at a site. The method MODULE:CLASS has a full stop in it, and `..` is no id."""


# ---- rules of one value ----------------------------------------------------------------------------------------------


def path_from(text: object, info: ValidationInfo) -> Path:
    """Return the absolute path of a text; relative ones start in the folder of site.toml, the validation's context.

    Raises ValueError for one with `..`, or that no file can have.
    """
    if not isinstance(text, str):
        raise ValueError("must be text")
    if not text.strip():
        raise ValueError("must name a path")
    if ".." in Path(text).parts:
        raise ValueError("must not hold ..")
    assert isinstance(info.context, Path)
    try:
        absolute = info.context.resolve().parent / Path(text).expanduser()
        absolute.resolve().exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long, nobody's home, a zero byte
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"is no path here ({reason})") from None
    return absolute


def existing_file(path: Path) -> Path:
    """Return the path of a file. Raises ValueError where there is none."""
    if not path.is_file():
        raise ValueError(f"there is no such file: {path}")
    return path


def folder_or_nothing(path: Path) -> Path:
    """Return the path of a folder that may still be made. Raises ValueError for a file's."""
    if path.exists() and not path.is_dir():
        raise ValueError("must be a folder")
    return path


def data_here(text: str, info: ValidationInfo) -> str:
    """Return KIND:PATH with the absolute path of the data. Raises ValueError for what is not there."""
    kind, _, named = text.partition(":")
    if kind not in DATA or not named.strip():
        raise ValueError("must be folder:PATH, npz:PATH or csv:PATH")
    path = path_from(named, info)
    is_there = path.is_dir() if kind == "folder" else path.is_file()
    if not is_there:
        raise ValueError(f"there is no {path}")
    return f"{kind}:{path}"


def each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return names. Raises ValueError for one that is there twice."""
    if len(set(names)) < len(names):
        raise ValueError("must name each once")
    return names


def field_of(key: str) -> str:
    """Return the name of the field that a key stands for."""
    return key.replace("-", "_")


def is_there(entries: object) -> bool:
    """Return that a table is there, which somebody else reads."""
    return entries is not None


def plain_values(entries: dict[str, Any]) -> dict[str, Any]:
    """Return a table of single values. Raises ValueError for one with lists, tables or dates."""
    if not all(type(value) in (str, int, float, bool) for value in entries.values()):
        raise ValueError("must hold texts, numbers, true and false")
    return entries


def agreement_at(text: object, info: ValidationInfo) -> Agreement:
    """Return the agreement in a file. Raises ValueError for what is no path, DataError for what the file says."""
    return read_agreement(path_from(text, info))


def reading_of(entries: object, info: ValidationInfo) -> DataSettings:
    """Return how data are read, settings of OF_OWN. Raises DataError for what they do not allow."""
    if not isinstance(entries, dict):
        raise ValueError("must be a table")
    where = f"{info.context}: read"
    stated = table_of(READ, entries, where).model_dump(exclude_unset=True)
    try:
        if labels_file(stated.get("labels", "")) is not None:
            stated["labels"] = str(existing_file(path_from(stated["labels"], info)))
    except ValueError as error:
        rule = str(error)
        raise DataError(rule, where=where, key="labels", value=stated["labels"]) from None
    try:
        return DataSettings(**stated)
    except SettingError as error:
        raise DataError(error.rule, where=where, key=error.key, value=error.value) from None


_read_fields: dict[str, Any] = {
    name: (type(getattr(USUAL, name)), getattr(USUAL, name)) for name in OF_OWN
}
READ: type[TomlTable] = create_model("Read", __base__=TomlTable, **_read_fields)
"""[read] of site.toml: some of the settings of data, by their names there."""


SitePath = Annotated[Path, BeforeValidator(path_from)]
ExistingFile = Annotated[SitePath, AfterValidator(existing_file)]
Names = Annotated[Texts, AfterValidator(each_once)]
Least = Annotated[int, Field(ge=1)]


# ---- tables ----------------------------------------------------------------------------------------------------------


class AppPolicy(TomlTable):
    """What may leave a site in the replies of a Flower app other than FedSkew's."""

    arrays: Names = ("arrays",)
    """Names of the ArrayRecords that may leave; `*` stands for any characters, as in `upload/*`."""
    metrics: Names = ("metrics",)
    """Names of the MetricRecords."""
    configs: Names = ()
    """Names of the ConfigRecords."""
    max_bytes: Annotated[int, Field(ge=0)] = 0
    """Most bytes of a reply; 0 is no limit."""
    max_norm: Annotated[float, Field(ge=0)] = 0.0
    """Largest norm of the change of the received arrays, or of arrays that none were received for; 0 is no limit."""
    min_samples: Least = 8
    """Samples below which a reply to train or evaluate does not leave, by its metric num-examples."""
    node_config: Annotated[dict[str, Any], AfterValidator(plain_values)] = {}
    """Entries of the app's context.node_config, beside data-path."""


class Limits(TomlTable):
    """[policy] of site.toml: what may leave a site, and which runs it takes part in."""

    allow: Names = DEFAULT_PERMISSIONS
    """What of PERMISSIONS may leave."""
    min_class_samples: Least = 1
    """Training samples of a class held, below which nothing about classes leaves."""
    min_test_samples: Least = 1
    """Test samples below which no scores leave."""
    max_norm: Annotated[float, Field(ge=0)] = 0.0
    """Largest norm of an update that leaves; 0 is no limit."""
    min_batch_size: Least = 8
    """Samples in a mini-batch below which a run is refused: the step of a single image is that image."""
    min_steps: Least = 1
    """Optimizer steps in a round below which a run is refused."""
    min_update_samples: Least = 8
    """Different training samples in an update below which a run is refused."""
    methods: Names | None = None
    """The local methods that a run may use, names of client_app.variants; None is all of them."""
    models: Names | None = None
    """The models that a run may train, names of client_app.models; None is all of them."""
    max_rounds: Least = 1000
    """Rounds that a run may have, and different questions to train that are answered in it."""
    approve_runs: bool = False
    """Whether a run takes part only after somebody here has approved its settings."""

    @model_validator(mode="after")
    def check_permissions(self) -> Self:
        """Raise BrokenRule for a word of `allow` that is no permission."""
        for word in self.allow:
            if word not in PERMISSIONS:
                raise BrokenRule("allow", f"must be some of {', '.join(PERMISSIONS)}", word)
        return self


class Site(TomlTable):
    """One site, as its site.toml says."""

    agreement: Annotated[Agreement, BeforeValidator(agreement_at)] = Field(alias="federation")
    """The one that the site has approved."""
    name: str
    data: Annotated[str, AfterValidator(data_here)]
    """folder:PATH, npz:PATH or csv:PATH."""
    state: Annotated[SitePath, AfterValidator(folder_or_nothing)]
    """Folder of its memory and cache, which belong to nobody else."""
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    reading: Annotated[DataSettings, BeforeValidator(reading_of)] = Field(USUAL, alias="read")
    """How its data are read: of these, the settings of OF_OWN count."""
    policy: Limits = Limits()
    app: AppPolicy | None = None
    """The policy for another app than FedSkew's; None is FedSkew's."""
    mask_key: SitePath = Field(MASK_KEY, validate_default=True)
    """The file of its private key for masked sums."""
    weights: SitePath | None = None
    """The site's own file of the agreed backbone's weights."""
    module: SitePath | None = None
    """The site's own file of the agreed module."""
    has_link: Annotated[bool, BeforeValidator(is_there)] = Field(False, alias="link")
    """Whether [link] is there. `read_link` reads it: who trains alone needs none of it."""

    @model_validator(mode="after")
    def check(self) -> Self:
        """Raise BrokenRule for keys that contradict each other, or what is agreed."""
        try:
            self.agreement.number(self.name)
        except LookupError as error:
            raise BrokenRule("name", str(error)) from None
        _, _, data = self.data.partition(":")
        if Path(data).resolve().is_relative_to(self.state.resolve()):
            raise BrokenRule("data", f"must not lie below state, {self.state}: that is deleted")
        stated = {type(self).model_fields[name].alias for name in self.model_fields_set}
        for key in NOT_OF_AN_APP:
            if self.app is not None and key in stated:
                rule = "has no effect on another app than FedSkew's: remove it, or [app]"
                raise BrokenRule(key, rule)
        return self

    @cached_property
    def number(self) -> int:
        """Its number in the agreement."""
        return self.agreement.number(self.name)

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


class Link(TomlTable):
    """How a site reaches its coordinator."""

    address: HostPort
    key: ExistingFile
    """The file of the node's private key."""
    ca: ExistingFile
    """The file of the federation's certificate authority."""


class LinkHalf(TomlTable):
    """What the half of a site that talks reads of site.toml: neither data nor policy."""

    model_config = ConfigDict(extra="ignore")

    state: Annotated[SitePath, AfterValidator(folder_or_nothing)]
    link: Link


# ---- files -----------------------------------------------------------------------------------------------------------


def read_site(path: Path) -> Site:
    """Return what site.toml says. Raises DataError, one sentence, for what a site cannot be run with.

    Nothing is made, and of the data only that they are there is looked at.
    """
    return table_of(Site, read_toml(path)[1], str(path), path)


def read_link(path: Path) -> LinkHalf:
    """Return what site.toml says of the link. Raises DataError for what it does not say, or a missing file."""
    return table_of(LinkHalf, read_toml(path)[1], str(path), path)


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
