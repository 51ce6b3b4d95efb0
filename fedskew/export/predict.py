"""Predictions of an exported model on new inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
from strategies.batch_norm import averaged, distances, reestimated

UNSEEN = {
    "averaged": "the sites' mean",
    "re-estimate": "their mean weights and the statistics of these inputs",
    "nearest": "the one whose statistics are nearest to these inputs'",
}
"""What stands for batch norm at a site nobody trained with."""


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


def predict(
    folder: ModelFolder, inputs: Inputs, site: str = ""
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
    probabilities_NC = F.softmax(logits_NC.double().cpu(), dim=1)
    probability_N, predicted_N = probabilities_NC.max(1)
    labels: Sequence[str | None] = [
        names[k] if inputs.labeled else None for k in samples.labels_N.tolist()
    ]
    by_class = (dict(zip(names, row, strict=True)) for row in probabilities_NC.tolist())
    rows = zip(
        inputs.names, predicted_N.tolist(), probability_N.tolist(), labels, by_class, strict=True
    )
    predictions = [Prediction(name, names[k], *rest) for name, k, *rest in rows]
    if not inputs.labeled:
        return predictions, None
    scores = Scores.of_batch(logits_NC, samples.labels_N)
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
    if site not in UNSEEN or not folder.only_batch_norm_is_private:
        raise unknown(folder, site)
    number = dict(enumerate(folder.sites))
    kept = {client: folder.sites[name] for client, name in number.items()}
    mean = {
        **folder.shared,
        **averaged(kept, {client: folder.samples[name] for client, name in number.items()}),
    }
    if site == "averaged":
        return mean
    if len(inputs.samples) < 2:
        raise DataError(
            f"--site {site} needs two inputs or more: one has no variance", where=str(inputs.where)
        )
    reestimated_state = reestimated(
        folder.model, mean, inputs.samples, torch.Generator().manual_seed(0)
    )
    if site == "re-estimate":
        return reestimated_state
    near = distances(folder.model, reestimated_state, kept)
    return {**folder.shared, **kept[min(near, key=lambda client: near[client])]}


def unknown(folder: ModelFolder, site: str) -> SettingError:
    """Return the error that names the sites, and what there is for a site nobody trained with."""
    rule = f"every site keeps a part of the model: must be one of {', '.join(folder.sites)}"
    if folder.only_batch_norm_is_private:
        ways = ", ".join(f"{way} ({what})" for way, what in UNSEEN.items())
        rule += f", or for a site nobody trained with one of {ways}"
    return SettingError("--site", site, rule)
