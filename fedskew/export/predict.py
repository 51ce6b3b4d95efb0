"""Predictions of an exported model on new inputs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from client_app.metrics import Scores
from client_app.models.classifier import in_batches
from client_app.state import State
from data import DataError, SettingError, require
from fedskew.export.inputs import Inputs
from fedskew.export.model_folder import ModelFolder
from server_app.evaluation import metrics_from, positive_class
from server_app.record import ModelNumbers
from strategies.batch_norm import averaged, reestimated

AVERAGED, REESTIMATED = "averaged", "re-estimate"
"""What stands for batch norm at a site nobody trained with: the sites' mean, or their mean weights and the inputs' own
statistics."""


@dataclass(frozen=True)
class Prediction:
    """What the model says about one input."""

    input: str
    prediction: str
    probability: float
    """Of the predicted class."""
    label: str | None
    """The true class, where it is known."""
    probabilities: Mapping[str, float]
    """By class."""
    row: int | None = None
    """Of a CSV file the row's line; None for other inputs."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """The row's cells that are no inputs, as they stand in the file, by column."""


def predict(
    folder: ModelFolder,
    inputs: Inputs,
    site: str = "",
) -> tuple[list[Prediction], ModelNumbers | None]:
    """Return the predictions in the inputs' order and, with labels, the numbers that a run records.

    Raises SettingError for a site that is missing or unknown, DataError for inputs that the model makes nothing of.
    """
    samples = inputs.samples
    names = folder.description.class_names
    folder.model.to(samples.labels_N.device)
    folder.model.load_state_dict(state_at(folder, inputs, site))
    folder.model.eval()
    logits_NC = in_batches(folder.model, samples)
    if not torch.isfinite(logits_NC).all():
        raise DataError("the model's outputs are not finite", where=str(inputs.where))
    predictions = []
    probabilities_NC = F.softmax(logits_NC.double().cpu(), dim=1)
    for index, probabilities_C in enumerate(probabilities_NC.tolist()):
        likeliest = int(probabilities_NC[index].argmax())
        is_known = bool(inputs.known_N[index])
        prediction = Prediction(
            input=inputs.read.names[index],
            prediction=names[likeliest],
            probability=probabilities_C[likeliest],
            label=names[int(samples.labels_N[index])] if is_known else None,
            probabilities=dict(zip(names, probabilities_C, strict=True)),
            row=inputs.read.lines[index] if inputs.read.lines else None,
            columns=inputs.read.columns[index] if inputs.read.columns else {},
        )
        predictions.append(prediction)
    if not inputs.known_N.any():
        return predictions, None
    scores = Scores.of_batch(logits_NC[inputs.known_N], samples.labels_N[inputs.known_N])
    tested_C = scores.confusion_CC.sum(1).tolist()
    positive = positive_class(names, folder.description.positive_class, tested_C=tested_C)
    return predictions, metrics_from(scores, positive=positive)


def state_at(folder: ModelFolder, inputs: Inputs, site: str) -> State:
    """Return the whole model's state at a site, or at one nobody trained with."""
    if not folder.private:
        require(not site, "--site", site, "has no effect: the model is the same at every site")
        return folder.shared
    if site in folder.sites:
        return {**folder.shared, **folder.sites[site]}
    if site not in (AVERAGED, REESTIMATED) or not folder.only_batch_norm_is_private:
        rule = f"every site keeps a part of the model: must be one of {', '.join(folder.sites)}"
        if folder.only_batch_norm_is_private:
            rule += f", or for a site nobody trained with {AVERAGED} or {REESTIMATED}"
        raise SettingError("--site", site, rule)
    states = dict(enumerate(folder.sites.values()))
    mean = {**folder.shared, **averaged(states, dict(enumerate(folder.samples.values())))}
    if site == AVERAGED:
        return mean
    if len(inputs.samples) < 2:
        rule = "needs two inputs or more: one has no variance"
        raise DataError(f"--site {site} {rule}", where=str(inputs.where))
    draws = torch.Generator().manual_seed(0)
    return reestimated(folder.model, mean, inputs.samples, draws)
