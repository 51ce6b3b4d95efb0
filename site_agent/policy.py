"""The policy for what may leave a site, checked before round 1 and at every message. Simulations have none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from client_app.client import Report, Variant
from client_app.local_site import NotAllowed, RunNotAllowed
from client_app.models import MODELS
from client_app.optimizer import TrainingSettings
from client_app.run_spec import RunSpec
from client_app.state import State, difference, digest, norm
from client_app.training import steps_of
from client_app.variants import VARIANTS
from data import DataError
from site_agent.config import Site

BY_CLASS = ("class-counts", "class-statistics", "head-gradients")
"""Permissions for what is told class by class."""
QUESTIONS = "questions.sha256"
"""In a site's folder of a run, a line for each different question to train that was answered."""


@dataclass(frozen=True)
class Policy:
    """A site's rules, with what they are about. Every check raises NotAllowed for what has to stay."""

    site: Site
    variants: Sequence[Variant]
    """Of the run."""
    counts_C: Tensor
    """(C,): training samples of each class."""
    tested: int
    """Test samples; subjects, where samples are parts of one."""
    training: TrainingSettings = field(default_factory=TrainingSettings)
    """Of the run."""

    def check_ready(self) -> None:
        """Look at all that the run will ask for; whatever has to stay is named at once."""
        self.check_training()
        needed = {
            "model",
            "scores",
            *(variant.upload.permission for variant in self.variants if variant.upload.permission),
        }
        if kept := sorted(needed - self.site.allow):
            raise NotAllowed(", ".join(kept))
        for permission in sorted(needed):
            self.check_counts(permission)
        self.check_scores()

    def check_update(self, start: State, report: Report) -> None:
        """Look at an update of `start`, and at its uploads."""
        self.check_permission("model")
        self.check_training()
        self.check_uploads(report.uploads)
        moved = norm(difference(report.shared, start))
        most = self.site.max_norm
        if most and not moved <= most:
            raise NotAllowed("model", f"the update's norm is {moved:.6g}, and max-norm = {most:g}")

    def check_training(self) -> None:
        """Look at how many samples and steps an update is made of.

        Of one step on one image, what the first layer's weights move by over what its biases move by is that image.
        """
        samples = int(self.counts_C.sum())
        batch = min(self.training.batch_size, samples)
        if batch < (least := self.site.min_batch_size):
            raise RunNotAllowed(
                "min-batch-size",
                f"a mini-batch has {batch} samples, and at least {least} are asked for",
            )
        steps = steps_of(samples, self.training)
        if steps < (least := self.site.min_steps):
            raise RunNotAllowed(
                "min-steps", f"a round has {steps} steps, and at least {least} are asked for"
            )
        different = samples_in_update(samples, self.training)
        if different < (least := self.site.min_update_samples):
            raise RunNotAllowed(
                "min-update-samples",
                f"an update is made of {different} samples, and at least {least} are asked for",
            )

    def check_uploads(self, uploads: Mapping[str, State]) -> None:
        """Look at uploads, or answers, by variant; an unknown one is not allowed under any name."""
        permissions = {variant.name: variant.upload.permission for variant in self.variants}
        for name in sorted(uploads):
            self.check_permission(permissions.get(name) or name)
            self.check_counts(permissions[name])

    def check_scores(self) -> None:
        """Look at scores on the test set."""
        self.check_permission("scores")
        if self.tested < (least := self.site.min_test_samples):
            raise NotAllowed(
                "scores", f"{self.tested} test samples, and min-test-samples = {least}"
            )

    def check_counts(self, permission: str) -> None:
        """Look at what is told class by class: no class held may have too few samples."""
        fewest = min((int(count) for count in self.counts_C.tolist() if count), default=0)
        if permission in BY_CLASS and fewest < (least := self.site.min_class_samples):
            raise NotAllowed(
                permission, f"a class has {fewest} samples, and min-class-samples = {least}"
            )

    def check_permission(self, permission: str) -> None:
        """Look for the permission in the site's file."""
        if permission not in self.site.allow:
            raise NotAllowed(permission)

    def count_question(self, folder: Path, round: int, states: Sequence[State]) -> None:
        """Count a request to train on these states, in the run's folder. Raises RunNotAllowed beyond max-rounds."""
        count_question(self.site, folder, round, states)


def samples_in_update(samples: int, training: TrainingSettings) -> int:
    """Return of how many different samples an update is made at least, for a client of so many training samples."""
    whole_epoch = steps_of(
        samples,
        replace(
            training,
            local_steps=0,
            local_epochs=1,
            batch_limit=0,
        ),
    )
    # Every epoch is shuffled anew, so of cut epochs the first alone is sure to hold different samples.
    steps = min(steps_of(samples, training), training.batch_limit or whole_epoch)
    return samples if steps >= whole_epoch else steps * training.batch_size


def check_run(site: Site, run_spec: RunSpec) -> None:
    """Look at what a run's settings say before the data are read. Raises RunNotAllowed for what policy excludes."""
    if site.models is not None and run_spec.model not in site.models:
        raise RunNotAllowed("models", f"{run_spec.model} is none of {', '.join(site.models)}")
    for variant in run_spec.variants:
        if site.methods is not None and variant.name not in site.methods:
            allowed = ", ".join(site.methods) or "an empty list"
            raise RunNotAllowed("methods", f"{variant.name} is none of {allowed}")
    if run_spec.rounds > site.max_rounds:
        raise RunNotAllowed(
            "max-rounds",
            f"the run has {run_spec.rounds} rounds, and at most {site.max_rounds} are allowed",
        )


def check_names(site: Site) -> None:
    """Raise DataError where the policy names a method or a model that does not exist, which would allow nothing."""
    for key, names, known in (
        ("methods", site.methods or (), VARIANTS),
        ("models", site.models or (), [*MODELS, *filter(None, [site.agreement.backbone])]),
    ):
        for name in names:
            if name not in known:
                rule = f"must be some of {', '.join(known)}"
                raise DataError(rule, where="policy", key=key, value=name)


def count_question(site: Site, folder: Path, round: int, states: Sequence[State]) -> None:
    """Note in the run's folder what a site is asked to train, and look at how often it was asked.

    A coordinator could ask for more rounds than the run has, or again and again for the same round with other weights.
    The same question, which a server that was killed repeats, counts once. Raises RunNotAllowed beyond max-rounds.
    """
    file = folder / QUESTIONS
    asked = digest(states, str(round))
    known = file.read_text().split() if file.exists() else []
    if asked in known:
        return
    if round > site.max_rounds or len(known) >= site.max_rounds:
        raise RunNotAllowed(
            "max-rounds",
            f"round {round}, after {len(known)} questions, and at most {site.max_rounds} are answered",
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as notes:
        notes.write(f"{asked}\n")
