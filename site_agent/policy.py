"""The policy for what may leave a site, checked before round 1 and at every message. Simulations have none."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from client_app.client import Report, Variant
from client_app.local_site import NotAllowed, RunNotAllowed
from client_app.models import MODELS
from client_app.optimizer import TrainingSettings
from client_app.run_spec import RunSpec, name_in_messages
from client_app.state import State, difference, digest, norm
from client_app.training import steps_of
from client_app.variants import VARIANTS
from data import DataError
from site_agent.config import Site

BY_CLASS = ("class-counts", "class-statistics", "head-gradients")
"""Permissions for numbers per class."""
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
        """Check all that the run will ask for; everything that must stay is named at once."""
        self.check_training()
        needed = {"model", "scores"}
        for variant in self.variants:
            if variant.upload.permission:
                needed.add(variant.upload.permission)
        missing = sorted(needed - self.site.allow)
        if missing:
            raise NotAllowed(", ".join(missing))
        for permission in sorted(needed):
            self.check_counts(permission)
        self.check_scores()

    def check_update(self, start: State, report: Report) -> None:
        """Check an update of `start`, and its uploads."""
        self.check_permission("model")
        self.check_training()
        self.check_uploads(report.uploads)
        moved = norm(difference(report.shared, start))
        most = self.site.max_norm
        if most and not moved <= most:  # NaN is not within the limit
            raise NotAllowed("model", f"the update's norm is {moved:.6g}, and max-norm = {most:g}")

    def check_training(self) -> None:
        """Check how many samples and steps an update is made of.

        After one step on one image, the first layer's weight change divided by its bias change is that image.
        """
        samples = int(self.counts_C.sum())
        batch = min(self.training.batch_size, samples)
        least = self.site.min_batch_size
        if batch < least:
            reason = f"a mini-batch has {batch} samples, and at least {least} are asked for"
            raise RunNotAllowed("min-batch-size", reason)
        steps = steps_of(samples, self.training)
        least = self.site.min_steps
        if steps < least:
            reason = f"a round has {steps} steps, and at least {least} are asked for"
            raise RunNotAllowed("min-steps", reason)
        different = samples_in_update(samples, self.training)
        least = self.site.min_update_samples
        if different < least:
            reason = f"an update is made of {different} samples, and at least {least} are asked for"
            raise RunNotAllowed("min-update-samples", reason)

    def check_uploads(self, uploads: Mapping[str, State]) -> None:
        """Check uploads, or answers, by variant; an unknown one is not allowed under any name."""
        permissions = {variant.name: variant.upload.permission for variant in self.variants}
        for name in sorted(uploads):
            # The name of an unknown variant is no permission, so this refuses it.
            permission = permissions.get(name) or name
            self.check_permission(permission)
            self.check_counts(permissions[name])

    def check_scores(self) -> None:
        """Check scores on the test set."""
        self.check_permission("scores")
        least = self.site.min_test_samples
        if self.tested < least:
            reason = f"{self.tested} test samples, and min-test-samples = {least}"
            raise NotAllowed("scores", reason)

    def check_counts(self, permission: str) -> None:
        """Check what is sent class by class: no class at the site may have too few samples."""
        if permission not in BY_CLASS:
            return
        counts = [int(count) for count in self.counts_C.tolist() if count]
        fewest = min(counts, default=0)
        least = self.site.min_class_samples
        if fewest < least:
            reason = f"a class has {fewest} samples, and min-class-samples = {least}"
            raise NotAllowed(permission, reason)

    def check_permission(self, permission: str) -> None:
        """Raise NotAllowed for a permission that the site's file does not give."""
        if permission not in self.site.allow:
            raise NotAllowed(permission)

    def count_question(self, folder: Path, round: int, states: Sequence[State]) -> None:
        """Count a request to train on these states, in the run's folder. Raises RunNotAllowed beyond max-rounds."""
        count_question(self.site, folder, round, states)


def samples_in_update(samples: int, training: TrainingSettings) -> int:
    """Return of how many different samples an update is made at least, for a client of so many training samples."""
    one_epoch = replace(training, local_steps=0, local_epochs=1, batch_limit=0)
    steps_of_epoch = steps_of(samples, one_epoch)
    # Every epoch is shuffled anew, so of cut epochs the first alone is sure to hold different samples.
    steps = min(steps_of(samples, training), training.batch_limit or steps_of_epoch)
    if steps >= steps_of_epoch:
        return samples
    return steps * training.batch_size


def check_run(site: Site, run_spec: RunSpec) -> None:
    """Check a run's settings before the data are read. Raises RunNotAllowed for what the policy excludes."""
    check_model_name(site, run_spec.model)
    check_variant_names(site, map(name_in_messages, run_spec.variants))
    most = site.max_rounds
    if run_spec.rounds > most:
        reason = f"the run has {run_spec.rounds} rounds, and at most {most} are allowed"
        raise RunNotAllowed("max-rounds", reason)


def check_model_name(site: Site, model: str) -> None:
    """Raise RunNotAllowed for a model that the policy excludes."""
    if site.models is not None and model not in site.models:
        raise RunNotAllowed("models", f"{model} is none of {', '.join(site.models)}")


def check_variant_names(site: Site, variants: Iterable[str]) -> None:
    """Raise RunNotAllowed for a local method that the policy excludes."""
    if site.methods is None:
        return
    allowed = ", ".join(site.methods) or "an empty list"
    for name in variants:
        if name not in site.methods:
            raise RunNotAllowed("methods", f"{name} is none of {allowed}")


def is_of_module(name: str, module: str) -> bool:
    """Return whether a name is MODULE:NAME of the agreed module. What the module holds is not looked at."""
    of, _, attribute = name.partition(":")
    return of == module != "" and attribute.isidentifier()


def check_names(site: Site) -> None:
    """Raise DataError where the policy names a method or a model that does not exist, which would allow nothing."""
    for key, names, known in (
        ("methods", site.methods or (), VARIANTS),
        ("models", site.models or (), [*MODELS, *filter(None, [site.agreement.backbone])]),
    ):
        for name in names:
            if name not in known and not is_of_module(name, site.agreement.module):
                rule = f"must be some of {', '.join(known)}"
                if site.agreement.module:
                    rule += f", or {site.agreement.module}:NAME"
                raise DataError(rule, where="policy", key=key, value=name)


def count_question(site: Site, folder: Path, round: int, states: Sequence[State]) -> None:
    """Record in the run's folder what a site is asked to train, and check how often it was asked.

    A coordinator could ask for more rounds than the run has, or again and again for the same round with other weights.
    The same question, which a server that was killed repeats, counts once. Raises RunNotAllowed beyond max-rounds.
    """
    file = folder / QUESTIONS
    asked = digest(states, str(round))
    known = file.read_text().split() if file.exists() else []
    if asked in known:
        return
    most = site.max_rounds
    if round > most or len(known) >= most:
        reason = f"round {round}, after {len(known)} questions, and at most {most} are answered"
        raise RunNotAllowed("max-rounds", reason)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as notes:
        notes.write(f"{asked}\n")
