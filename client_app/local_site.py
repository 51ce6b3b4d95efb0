"""What a process needs from a hospital's own site, LocalSite, and the words that both sides of a message share.

`site_agent` implements it from site.toml. A process at a hospital installs its one site, and a rehearsal
installs all of them. A simulation installs none, and then no policy applies. This file imports no torch, as
`fedskew-site` needs it before any training.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from client_app.client import Report
    from client_app.masked_sum import Words
    from client_app.models import ModelSettings
    from client_app.run_spec import RunSpec
    from client_app.state import State
    from data import Federation

PERMISSIONS = (
    "model", "scores", "class-counts", "column-sums", "class-statistics", "head-gradients",
    "control-variates",
)  # fmt: skip
"""What may leave a site: updates with their number of samples and loss; scores on its test set, and the numbers that
methods record of its training (`Contribution.numbers`); and what methods ask for beside them."""
DEFAULT_PERMISSIONS = ("model", "scores", "class-counts", "column-sums")
RUN_KEYS = (
    "min-batch-size", "min-steps", "min-update-samples", "methods", "models", "max-rounds", "approve-runs",
)  # fmt: skip
"""The keys of a site's policy that are about a run's settings, and not about what leaves."""
OWN_DATA = "data-path"
"""The entry of a node's configuration that names the file or folder of its own data."""
QUESTION = "readiness"
"""The question whether a site can do its part of a run, which every site is asked before round 1."""
RUN_SIGNATURE = "run-signature"
"""The key of flwr's run config with the coordinator's signature of a run, which sites check where they have its key."""
NOT_A_PARTICIPANT = 100
"""The code of the error by which a gateway declines a message to a site outside the run; flwr's codes are below."""
POLICY, NOT_FINITE, NOT_SIGNED = "policy", "not finite", "not signed"
"""The kinds of a failure that a site's policy is the cause of, that values which are not finite are, and that a run
without the coordinator's signature is."""


class DataChanged(RuntimeError):
    """Data that are not those of the client's first answer in a run."""


class NotAgreed(PermissionError):
    """A message that asks for what the agreement does not hold."""


class NotAllowed(PermissionError):
    """Something that the site's policy keeps; `permission` is the one that it lacks."""

    def __init__(self, permission: str, reason: str = "") -> None:
        rule = f"policy: {permission} may not leave"
        super().__init__(f"{rule}: {reason}" if reason else rule)
        self.permission = permission


class RunNotAllowed(NotAllowed):
    """A run whose settings the site's policy does not allow; `permission` is the policy's key."""

    def __init__(self, key: str, reason: str) -> None:
        PermissionError.__init__(self, f"policy: {key}: {reason}")
        self.permission = key


class RunNotSigned(RunNotAllowed):
    """A run that the coordinator's key, federation.toml's run-key, has not signed."""

    def __init__(self, reason: str) -> None:
        PermissionError.__init__(self, f"{NOT_SIGNED}: {reason}")
        self.permission = "run-key"


def hash_of(settings: str) -> str:
    """Return the sha256 of a run's settings, the JSON text that every message holds."""
    return hashlib.sha256(settings.encode()).hexdigest()


class SitePolicy(Protocol):
    """A site's rules for one run. Every check raises NotAllowed for what must not leave the site."""

    def check_ready(self) -> None:
        """Check everything that the run will ask for."""

    def check_training(self) -> None:
        """Check how many samples and steps make up an update."""

    def check_update(self, start: "State", report: "Report") -> None:
        """Check an update of the weights `start`, and its uploads."""

    def check_uploads(self, uploads: "Mapping[str, State]") -> None:
        """Check uploads or answers, by variant."""

    def check_scores(self) -> None:
        """Check scores on the test set."""

    def count_question(self, folder: Path, round: int, states: "Sequence[State]") -> None:
        """Count a request to train on these states. `folder` is the run's, where the count is kept."""

    def count_evaluation(
        self, folder: Path, round: int, models: "Mapping[str, State]", standardization: "State"
    ) -> None:
        """Count a request to evaluate these models on inputs of this mean and std, as `count_question` does."""


class SiteSums(Protocol):
    """A site's part in masked sums. Both raise NotAgreed for what the site does not answer."""

    def nonce(self, purpose: str, compute: "Callable[[], Words]") -> bytes:
        """Return the site's nonce for a sum; `compute` returns its integers, and is called once."""

    def answer(self, purpose: str, text: str) -> "Words":
        """Return the site's masked words for a list of sites, the JSON text of a SumList."""


class LocalSite(Protocol):
    """A site with its own data: only the site's own files decide about it, and no message does."""

    @property
    def name(self) -> str:
        """Its name in the agreement."""

    @property
    def device(self) -> str:
        """cpu, cuda or auto."""

    @property
    def threads(self) -> int:
        """Threads to train with."""

    @property
    def sums(self) -> SiteSums | None:
        """Its part in masked sums; None where federation.toml says sums = plain."""

    def __hash__(self) -> int:
        """Sites are keys of a cache."""

    def run_folder(self, run: str) -> Path:
        """Return the folder of a run's memory. Raises NotAgreed for a text that is not a run's id."""

    def check_accepted(self, settings: str, signature: str | None) -> None:
        """Raise RunNotAllowed for settings of a run that lack the coordinator's signature, or an approval at the site.

        `signature` is "" without one, and None for a question that needs none.
        """

    def load_module(self, model: str, variants: "Sequence[str]") -> str:
        """Load the site's own file of the agreed module, and return the module's name.

        `model` and `variants` are what a run names of it, MODULE:NAME. Raises NotAgreed for another module,
        RunNotAllowed for what the policy excludes, DataError for a file whose sha256 is not the agreed one.
        """

    def open_data(self, run_spec: "RunSpec") -> "Federation":
        """Return the site's data, as a federation of one client.

        Raises RunNotAllowed for a run that the policy excludes, NotAgreed or DataError for data that do not fit.
        """

    def model_settings(self, run_spec: "RunSpec") -> "ModelSettings":
        """Return a run's settings of the model, with the site's own file of weights. Raises DataError without it."""

    def keep_data_hash(self, run: Path, content: str) -> None:
        """Keep the data's hash in the folder of a run: the data must not change from now on."""

    def policy(self, run_spec: "RunSpec", federation: "Federation") -> SitePolicy:
        """Return the rules for a run on these data."""


_sites: dict[int, LocalSite] = {}


def install(sites: Mapping[int, LocalSite]) -> None:
    """Let this process act for these sites, by number, in place of those before."""
    _sites.clear()
    _sites.update(sites)


def installed() -> Mapping[int, LocalSite]:
    """Return the sites that this process acts for, by number; none in a simulation."""
    return _sites
