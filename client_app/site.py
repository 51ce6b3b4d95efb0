"""A hospital's place in a federation: what its own files alone decide, and no message.

A process that plays sites has them installed: one at a hospital, all of them in a rehearsal. In a simulation there is
none, and nothing here is at work.
"""

import itertools
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from data.agreement import Agreement
from data.settings import USUAL, DataSettings
from data.text import sentence

PERMISSIONS = (
    "model", "scores", "class-counts", "class-statistics", "head-gradients", "control-variates", "batch-norm",
)  # fmt: skip
"""What may leave a site: updates with their number of samples and loss, scores on its test set, and what methods ask
for beside them."""
DEFAULT_PERMISSIONS = ("model", "scores", "class-counts")
RUN_KEYS = (
    "min-batch-size", "min-steps", "min-update-samples", "methods", "models", "max-rounds", "approve-runs",
)  # fmt: skip
"""The keys of a site's policy that are about a run's settings, and not about what leaves."""
RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9+_-]{0,199}")
"""A run's id, which names a folder at a site."""
POLICY, NOT_FINITE = "policy:", "not finite"


class DataChanged(RuntimeError):
    """Data that are not those of the client's first answer in a run."""


KINDS: Mapping[str, str] = {
    "MemoryLost": "memory", "Damaged": "memory", "DataError": "data", "SettingError": "setting",
    "FloatingPointError": NOT_FINITE, "DataChanged": "data changed",
}  # fmt: skip
"""What leaves of an error by its class's name, with a number; anything else is a failure."""
log = logging.getLogger("fedskew.site")
"""What a site says of itself; nothing of it leaves."""


@dataclass(frozen=True)
class Site:
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
    allow: frozenset[str] = frozenset(DEFAULT_PERMISSIONS)
    """What of PERMISSIONS may leave."""
    min_class_samples: int = 1
    """Training samples of a class held, below which nothing about classes leaves."""
    min_test_samples: int = 1
    """Test samples below which no scores leave."""
    max_norm: float = 0.0
    """Largest norm of an update that leaves; 0 is no limit."""
    reading: DataSettings = USUAL
    """How its data are read: of these, the settings of OF_OWN count."""
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

    @property
    def cache(self) -> Path:
        """The folder of the memory-mapped copy of the data."""
        return self.state / "cache"

    def run_folder(self, run: str) -> Path:
        """Return the folder of a run's memory. Raises NotAgreed for what is no run's id."""
        if not RUN.fullmatch(run):
            raise NotAgreed(f"folder {run!r} is no run's id")
        return self.state / "runs" / run


class NotAgreed(PermissionError):
    """A message that asks for what the agreement does not hold."""


class NotAllowed(PermissionError):
    """Something that the site's policy keeps; `permission` is the one that it lacks."""

    def __init__(self, permission: str, reason: str = "") -> None:
        super().__init__(f"policy: {permission} may not leave{f': {reason}' if reason else ''}")
        self.permission = permission


class RunNotAllowed(NotAllowed):
    """A run whose settings the site's policy does not allow; `permission` is the policy's key."""

    def __init__(self, key: str, reason: str) -> None:
        PermissionError.__init__(self, f"policy: {key}: {reason}")
        self.permission = key


_sites: dict[int, Site] = {}
_reports = itertools.count(1)


def install(sites: Mapping[int, Site]) -> None:
    """Let this process play these sites, by number, in place of those before."""
    _sites.clear()
    _sites.update(sites)


def installed() -> Mapping[int, Site]:
    """Return the sites that this process plays, by number; none in a simulation."""
    return _sites


def kind_of(error: Exception) -> str:
    """Return the kind of an error."""
    if isinstance(error, NotAgreed):
        return "agreement"
    if isinstance(error, NotAllowed):
        return f"{POLICY} {error.permission}"
    return next(
        (KINDS[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in KINDS), "failure"
    )


def reason_of(error: Exception, client: int) -> str:
    """Return why a client failed, as its reply may say it: of a site the error's kind and its number in the log.

    The sentence, which may name a file or a patient, is written into the site's log and stays there.
    """
    if not _sites:
        return sentence(error)
    number, kind = next(_reports), kind_of(error)
    name = _sites[client].name if client in _sites else f"client {client}"
    log.error("%s: %s %d: %s: %s", name, kind, number, type(error).__name__, error)
    return f"{kind} {number}"
