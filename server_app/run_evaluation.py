"""Measures a run's models after a round: on the server's test set, or at the clients that have their own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from client_app.metrics import Scores, evaluate_models
from client_app.models import Classifier
from client_app.personal import FINE_TUNED, variants_with_models
from client_app.state import State
from data import Federation, Samples
from data.text import LineAboutData, LineSink
from server_app.evaluation import PositiveClass, of_clients, of_server, positive_class, shot_groups
from server_app.record import ModelNumbers
from server_app.run_folder import RunFolder
from server_app.run_settings import RunSettings
from strategies.core.exchange import Grid
from strategies.core.questions import evaluate_on_clients
from strategies.core.rounds import Rounds
from strategies.core.server import Diverged


@dataclass
class RunEvaluation:
    """The measurements of one run."""

    grid: Grid
    """Reaches the clients."""
    settings: RunSettings
    federation: Federation
    """The data; of sites without their samples."""
    strategy: Rounds
    """Has the deployed models, and asks the clients."""
    model: Classifier
    """Takes a deployed state, where the server measures."""
    device: str
    """Where the server measures."""
    folder: RunFolder
    """Its records have the positive class of a run that is resumed."""
    report_line: LineSink
    """Gets the line about the positive class."""
    unmeasured: dict[int, str] = field(default_factory=dict)
    """Why clients are missing from the last round's numbers."""

    def __post_init__(self) -> None:
        self.counts_KC = torch.as_tensor(self.federation.counts_KC)
        # Clients measure where they hold private tensors, or test sets of their own.
        has_private_tensors = len(self.strategy.shared) < len(self.model.state_dict())
        self.by_clients = has_private_tensors or self.federation.test_indices is not None
        self.positive = self.known_positive()
        self.groups = shot_groups(self.counts_KC.sum(0).tolist(), self.settings.data.long_tailed)

    def known_positive(self) -> PositiveClass | None:
        """Return the positive class of two; None for more classes, and between sites before the first evaluation.

        Between sites nobody knows the training samples: the first evaluation's test samples decide, and what they have
        decided stands in the records.
        """
        names = self.settings.data.class_names
        stated = self.settings.general.positive_class
        if self.settings.agreement is None:
            data = self.federation.dataset
            labels = data.test.labels[self.federation.global_test]
            tested_C = np.bincount(labels, minlength=data.num_classes).tolist()
            return positive_class(names, stated, self.counts_KC.sum(0).tolist(), tested_C)
        for record in self.folder.rounds():
            for numbers in record.models.values():
                stated = stated or numbers.positive_class or ""
        return positive_class(names, stated) if stated in names else None

    def report_positive(self) -> None:
        """Say which class is the positive one of two, where it is known."""
        if self.positive is not None:
            subject = "AUPRC, sensitivity and specificity are about it"
            line = (
                f"positive class: {self.positive.name}: {subject} (positive-class states another)"
            )
            self.report_line(LineAboutData(line))

    def personal_models(self, is_last: bool) -> list[str]:
        """Return the names of the clients' own models, which they measure after a round."""
        names = variants_with_models(self.strategy.variants)
        if is_last and self.settings.training.finetune_epochs:
            names.append(FINE_TUNED)
        return names

    def evaluate(
        self, kept: dict[str, State], personal: Sequence[str] = ()
    ) -> dict[str, ModelNumbers]:
        """Return every model's numbers on test and validation set.

        `kept` gets the models' outputs on the server's test set: see `RunFolder.write_predictions`. `personal`
        names the clients' own models.
        """
        if self.by_clients:
            numbers = self.evaluate_at_clients(personal)
        else:
            test = self.federation.test(None, self.device)
            numbers = {"test": self.evaluate_here(test, kept)}
            if test.groups_N is None:  # else a subject's samples are tested together
                _, tested_N = self.federation.selected("test")
                for name, state in kept.items():
                    # A tensor of its own for each, as files share none.
                    kept[name] = {**state, "samples": torch.tensor(tested_N)}
            validation = self.federation.validation(None, self.device)
            if validation is not None:
                numbers["validation"] = self.evaluate_here(validation, {})
            if personal:
                for kind, models in self.evaluate_at_clients(personal, alone=True).items():
                    numbers[kind] |= models
        on_validation = numbers.get("validation", {})
        return {
            name: replace(on_test, validation=on_validation.get(name))
            for name, on_test in numbers["test"].items()
        }

    def evaluate_at_clients(
        self, personal: Sequence[str], alone: bool = False
    ) -> dict[str, dict[str, ModelNumbers]]:
        """Return the numbers that clients measured, by kind of test set and model, and note who is missing.

        With `alone` they measure the `personal` models and none that is deployed.
        """
        classes = self.federation.dataset.num_classes
        by_kind, missing = evaluate_on_clients(
            self.strategy, self.grid, classes, self.tested, personal, alone
        )
        self.unmeasured = {client: f"evaluation: {reason}" for client, reason in missing.items()}
        self.decide_positive(by_kind["test"])
        numbers: dict[str, dict[str, ModelNumbers]] = {kind: {} for kind in by_kind}
        for kind, models in by_kind.items():
            for name, scores in models.items():
                measured = of_clients(scores, self.counts_KC, self.groups, self.positive)
                numbers[kind][name] = measured
        return numbers

    def evaluate_here(self, samples: Samples, kept: dict[str, State]) -> dict[str, ModelNumbers]:
        """Return every model's numbers on samples of the server's. Raises Diverged for outputs that are not finite."""
        model = self.model.to(self.device)
        try:
            measured = evaluate_models(model, self.strategy.deployed, samples, kept)
        except FloatingPointError as error:
            raise Diverged(self.strategy.round, str(error)) from error
        numbers = {}
        for name, scores in measured.items():
            numbers[name] = of_server(scores, self.counts_KC, self.groups, self.positive)
        return numbers

    def decide_positive(self, by_model: Mapping[str, Mapping[int, Scores]]) -> None:
        """Let the sites' first evaluation decide which of two classes is the rarer one; it stays that for the run."""
        names = self.settings.data.class_names
        if self.positive is not None or len(names) != 2:
            return
        # All models are tested on the same samples, so any of them tells how many there are.
        by_client = next(iter(by_model.values()))
        of_clients = [scores.confusion_CC.sum(1) for scores in by_client.values()]
        tested_C = torch.stack(of_clients).sum(0)
        self.positive = positive_class(names, tested_C=tested_C.tolist())
        self.report_positive()

    @cached_property
    def tested(self) -> dict[str, dict[int, Tensor]]:
        """By kind of test set and client the samples of each class, (C,); none of sites. Counted once."""
        tested: dict[str, dict[int, Tensor]] = {"test": {}}
        if self.federation.validated:
            tested["validation"] = {}
        if self.settings.agreement is not None:
            return tested
        for kind, of_client in tested.items():
            for client in range(self.federation.clients):
                counts_C = self.federation.tested_C(kind, client)
                of_client[client] = torch.from_numpy(counts_C)
        return tested
