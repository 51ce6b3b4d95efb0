"""A site's policy on what may leave it, checked before round 1 and for every message. Simulations have no policy."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from client_app.client import Report, Variant
from client_app.local_site import NotAllowed, RunNotAllowed
from client_app.models import MODELS
from client_app.optimizer import TrainingSettings
from client_app.run_spec import RunSpec, name_in_messages
from client_app.site_questions import ColumnSums
from client_app.state import State, difference, digest, norm
from client_app.training import steps_of
from client_app.variants import VARIANTS
from data import DataError
from site_agent.audit import append, complete_lines, last_line
from site_agent.config import Limits, Site, field_of

BY_CLASS = ("class-counts", "class-statistics", "head-gradients")
"""Permissions whose uploads have values per class; min-class-samples applies to these."""
QUESTIONS = "questions.sha256"
"""The file in a site's folder of a run with one hash per line: the different training requests that were answered."""
EVALUATIONS = "evaluations.sha256"
"""The same of the different sets of models that were evaluated."""
MOST_MODELS = 16
"""Models of one evaluation at most. The settings that a site sees do not name the models that the server makes.

No composition of methods makes as many between sites, where the server has no samples of its own.
"""
SPARE_EVALUATIONS = 10
"""Sets of models that a run may have evaluated beyond one per round.

A run that resumes evaluates its last round again, and its average is another one if another site was away.
"""


@dataclass(frozen=True)
class Policy:
    """A site's rules, and the run and data to which they apply. A check raises NotAllowed for what must not leave."""

    limits: Limits
    variants: Sequence[Variant]
    """The run's local methods."""
    counts_C: Tensor
    """(C,): the number of training samples of each class."""
    tested: int
    """The number of test samples; of subjects, if the samples of a subject are evaluated together."""
    training: TrainingSettings = field(default_factory=TrainingSettings)
    """The run's training settings."""
    rounds: int = 0
    """The run's rounds."""

    def check_ready(self) -> None:
        """Check everything that the run will ask for. The error names all missing permissions at once."""
        self.check_training()
        asked = {variant.upload.permission for variant in self.variants} - {""}
        needed = sorted({"model", "scores"} | asked)
        missing = [permission for permission in needed if permission not in self.limits.allow]
        if missing:
            raise NotAllowed(", ".join(missing))
        for permission in needed:
            self.check_counts(permission)
        self.check_scores()

    def check_update(self, start: State, report: Report) -> None:
        """Check a trained model, its uploads and numbers. `start` is the model that the server sent."""
        self.check_permission("model")
        self.check_training()
        least = self.limits.min_update_samples
        if report.drawn is not None and report.drawn < least:
            reason = f"the update is of {report.drawn} different samples, and at least {least} are asked for"
            raise RunNotAllowed("min-update-samples", reason)
        self.check_uploads(report.uploads)
        if report.numbers:
            self.check_scores()  # a method's numbers may be about anything: scores covers them
        update_norm = norm(difference(report.shared, start))
        most = self.limits.max_norm
        if most and not update_norm <= most:  # `not <=` also refuses NaN
            reason = f"the update's norm is {update_norm:.6g}, and max-norm = {most:g}"
            raise NotAllowed("model", reason)

    def check_training(self) -> None:
        """Check the batch size, the number of steps and the number of different samples of an update.

        An update from few samples can reveal them: after one step on one image, the weight change of a linear first
        layer divided by its bias change is that image.
        """
        samples = int(self.counts_C.sum())
        numbers = {
            "min-batch-size": min(self.training.batch_size, samples),
            "min-steps": steps_of(samples, self.training),
            "min-update-samples": samples_in_update(samples, self.training),
        }
        for key, number in numbers.items():
            least = getattr(self.limits, field_of(key))
            if number < least:
                raise RunNotAllowed(
                    key, f"the run has {number}, and at least {least} are asked for"
                )

    def check_uploads(self, uploads: Mapping[str, State]) -> None:
        """Check uploads or answers, by the name of their local method. An upload of an unknown method never passes."""
        permissions = {variant.name: variant.upload.permission for variant in self.variants}
        for name in sorted(uploads):
            # Not even of one that is called as a permission is, such as control-variates.
            if not permissions.get(name):
                raise NotAllowed(name)
            self.check_permission(permissions[name])
            self.check_counts(permissions[name])

    def check_scores(self) -> None:
        """Check whether scores on the test set may leave: the permission, and enough test samples."""
        self.check_permission("scores")
        self.check_number("scores", "min-test-samples", self.tested)

    def check_counts(self, permission: str) -> None:
        """Check that values of a permission are of enough samples.

        Values per class need min-class-samples of every class at the site, sums of columns min-update-samples rows.
        """
        if permission == ColumnSums.permission:
            self.check_number(permission, "min-update-samples", int(self.counts_C.sum()))
        if permission in BY_CLASS:
            counts = [int(count) for count in self.counts_C.tolist() if count]
            self.check_number(permission, "min-class-samples", min(counts, default=0))

    def check_number(self, permission: str, key: str, number: int) -> None:
        """Raise NotAllowed for values of fewer samples than a key of the policy asks for."""
        least = getattr(self.limits, field_of(key))
        if number < least:
            raise NotAllowed(permission, f"it is of {number} samples, and {key} = {least}")

    def check_permission(self, permission: str) -> None:
        """Raise NotAllowed for a permission that is not in `allow` of site.toml."""
        if permission not in self.limits.allow:
            raise NotAllowed(permission)

    def count_question(self, folder: Path, round: int, states: Sequence[State]) -> None:
        """Count a request to train on `states` in the run's folder, and check the number of requests.

        Without this limit, a coordinator could request more rounds than the run has, or the same round many times with
        other weights. A repeated request, as a restarted server sends it, counts once.

        Raises:
            RunNotAllowed: the round, or the number of different requests, exceeds max-rounds.
        """
        file = folder / QUESTIONS
        request = digest(states, str(round))
        answered = complete_lines(file)
        if request.encode() in answered:
            return
        most = self.limits.max_rounds
        if round > most or len(answered) >= most:
            reason = (
                f"round {round}, after {len(answered)} questions, and at most {most} are answered"
            )
            raise RunNotAllowed("max-rounds", reason)
        add_request(file, request)

    def count_evaluation(
        self, folder: Path, round: int, models: Mapping[str, State], standardization: State
    ) -> None:
        """Count a request to evaluate `models` in the run's folder, and check the number of models and of requests.

        The losses of a crafted model reveal a sum over the test samples of each class, and so do those of one model on
        columns of several means. Without these limits a coordinator could ask for as many sums as the samples have
        pixels. A repeated request counts once.

        Raises:
            NotAllowed: too many models, a round that the run does not have, or too many different requests.
        """
        if len(models) > MOST_MODELS:
            reason = f"{len(models)} models are sent, and at most {MOST_MODELS} are evaluated"
            raise NotAllowed("scores", reason)
        if not 0 <= round <= self.rounds:
            raise NotAllowed("scores", f"round {round} is none of the run's {self.rounds}")
        file = folder / EVALUATIONS
        names = sorted(models)
        sent = [*(models[name] for name in names), standardization]
        request = digest(sent, str(round), *names)
        answered = complete_lines(file)
        if request.encode() in answered:
            return
        most = self.rounds + 1 + SPARE_EVALUATIONS  # a run without rounds evaluates round 0
        if len(answered) >= most:
            reason = f"{most} sets of models are evaluated, and the run has {self.rounds} rounds"
            remedy = f"`fedskew-site delete-run {folder.name}` lets a run begin anew"
            raise NotAllowed("scores", f"{reason}; {remedy}")
        add_request(file, request)


def add_request(file: Path, request: str) -> None:
    """Append the hash of a request to a file of them; it is on the disk when this returns. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(0o600)
    with file.open("rb+") as requests:
        append(requests, last_line(requests)[0], request)


def samples_in_update(samples: int, training: TrainingSettings) -> int:
    """Return a lower bound on the different samples in an update, for a client with `samples` training samples.

    It is none where a method draws samples with replacement: `Policy.check_update` counts what was drawn.
    """
    one_epoch = replace(training, local_steps=0, local_epochs=1, batch_limit=0)
    steps_of_epoch = steps_of(samples, one_epoch)
    # batch-limit cuts epochs short, and each epoch is shuffled anew. Later epochs may repeat samples of the first one,
    # so only the first one counts.
    steps = min(steps_of(samples, training), training.batch_limit or steps_of_epoch)
    if steps >= steps_of_epoch:
        return samples
    return steps * training.batch_size


def check_run(site: Site, run_spec: RunSpec) -> None:
    """Check a run's model, local methods and rounds before the data are read. Raises RunNotAllowed."""
    check_listed(site.policy, "models", [run_spec.model])
    check_listed(site.policy, "methods", map(name_in_messages, run_spec.variants))
    most = site.policy.max_rounds
    if run_spec.rounds > most:
        reason = f"the run has {run_spec.rounds} rounds, and at most {most} are allowed"
        raise RunNotAllowed("max-rounds", reason)


def check_listed(limits: Limits, key: str, names: Iterable[str]) -> None:
    """Raise RunNotAllowed for a name that is not in the list of a key of the policy, `models` or `methods`."""
    listed = getattr(limits, key)
    for name in names:
        if listed is not None and name not in listed:
            raise RunNotAllowed(key, f"{name} is none of {', '.join(listed) or 'an empty list'}")


def is_of_module(name: str, module: str) -> bool:
    """Return whether a name is MODULE:NAME with the agreed module. Does not check that the module defines NAME."""
    named_module, _, attribute = name.partition(":")
    return named_module == module != "" and attribute.isidentifier()


def check_names(site: Site) -> None:
    """Raise DataError if the policy names a method or a model that does not exist: such an entry allows nothing."""
    agreement = site.agreement
    known = {"methods": [*VARIANTS], "models": [*MODELS, *filter(None, [agreement.backbone])]}
    for key, names in known.items():
        for name in getattr(site.policy, key) or ():
            if name not in names and not is_of_module(name, agreement.module):
                rule = f"must be some of {', '.join(names)}"
                if agreement.module:
                    rule += f", or {agreement.module}:NAME"
                raise DataError(rule, where="policy", key=key, value=name)
