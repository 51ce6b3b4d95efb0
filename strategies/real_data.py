"""CReFF's yardsticks, from real, balanced data at the server (Shang et al. 2022): a head or one block of the features
re-trained on them, and how far learned features are from real ones. They are for analysis, not for use.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor, nn

from client_app.models import Classifier
from client_app.optimizer import SGD
from client_app.state import State
from strategies.core.server import Deployment, Server, ServerMethod, Update
from strategies.feddf import batches, on_cpu
from strategies.head import features_of, with_trained_head


@dataclass(frozen=True)
class RealFeatures(ServerMethod):
    """Deploy the average under a head re-trained on the hold-out's features, as in the paper's Figures 1 and 2.

    The average itself is FedAvg's. Identity: head-steps = 0 deploys FedAvg's own head.
    """

    name: ClassVar[str] = "real-features"
    needs_holdout: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"whole-model"})
    deploys_for_evaluation: ClassVar[bool] = True

    head_steps: Annotated[int, Ge(0)] = 300
    """Full-batch steps of the head in a round, from the average's."""
    head_learning_rate: Annotated[float, Gt(0)] = 0.1
    """Learning rate of the head."""

    def deploy(
        self,
        server: Server,
        state: State,
        shared: State,
        updates: Sequence[Update],
    ) -> Deployment:
        samples = server.own_samples(self.name)
        features_ND = features_of(server.model.to(server.device), shared, samples)
        steps, rate = self.head_steps, self.head_learning_rate
        model = with_trained_head(shared, features_ND, samples.labels_N, steps, rate)
        return Deployment({self.name: model}, state)


@dataclass(frozen=True)
class RealBlocks(ServerMethod):
    """Deploy, for each block of the features, the average with that block alone re-trained on the hold-out.

    The models are named real-blocks-1 and so on, from the input; `real-features` re-trains the head. Batch norm stays
    in eval mode, so that nothing but the block's parameters moves. Identity: steps = 0 deploys the average, once per
    block.
    """

    name: ClassVar[str] = "real-blocks"
    needs_holdout: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"whole-model", "trained-features"})
    deploys_for_evaluation: ClassVar[bool] = True

    steps: Annotated[int, Ge(0)] = 300
    """Mini-batches for a block in a round, from the average's weights."""
    batch_size: Annotated[int, Ge(1)] = 32
    """Images of the hold-out in a mini-batch."""
    learning_rate: Annotated[float, Gt(0)] = 0.01
    """Learning rate of plain gradient descent."""

    def deploy(
        self,
        server: Server,
        state: State,
        shared: State,
        updates: Sequence[Update],
    ) -> Deployment:
        samples = server.own_samples(self.name)
        model = server.model.to(server.device)
        models = {}
        for number, names in enumerate(blocks(model), start=1):
            parameters = [model.get_parameter(name) for name in names]
            model.load_state_dict(shared)
            model.eval()
            optimizer = SGD(parameters, self.learning_rate, momentum=0.0, weight_decay=0.0)
            draws = server.generator(self.name)
            for indices in batches(len(samples), self.batch_size, self.steps, draws):
                indices_B = indices.to(samples.labels_N.device)
                logits_BC = model(samples.batch(indices_B))
                loss = F.cross_entropy(logits_BC, samples.labels_N[indices_B])
                optimizer.step(torch.autograd.grad(loss, parameters))

            trained = on_cpu(model)
            models[f"{self.name}-{number}"] = {**shared, **{name: trained[name] for name in names}}
        return Deployment(models, state)


def blocks(model: Classifier) -> list[list[str]]:
    """Return the names of each block's parameters: a top-level module of the features and the batch norm after it."""
    result: list[list[str]] = []
    for name, module in model.features.named_children():
        weights = module.named_parameters(f"features.{name}")
        names = [weight for weight, parameter in weights if parameter.requires_grad]
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and result:
            result[-1] += names
        elif names:
            result.append(names)
    return result


DISSIMILARITIES = (
    "matching-loss-by-class",
    "feature-dissimilarity-by-class",
    "feature-pair-dissimilarity-by-class",
)
"""What `dissimilarities` records."""


def dissimilarities(
    server: Server, method: str, features_CMD: Tensor, losses_n: Tensor, held: Tensor
) -> dict[str, Sequence[float]]:
    """Return by class the matching loss, and how far learned features are from the hold-out's, in two measures.

    The paper does not define its own. The first is 1 - cosine of the mean federated and the mean held-out feature, the
    second 1 - cosine of a federated and a held-out feature, the mean over all pairs. Both are NaN for a class of which
    the hold-out has no sample. Its features are those of the weights that the clients began the round with, as their
    gradients are.

    Args:
        server: its hold-out's labels are looked at.
        method: whose draws and errors it is.
        features_CMD: the learned features.
        losses_n: the matching losses of the classes `held`; those of the others are NaN.
        held: the classes.
    """
    loss_C = losses_n.new_full((len(features_CMD),), math.nan)
    loss_C[held] = losses_n
    samples = server.own_samples(method)
    model = server.model.to(server.device)
    features_ND = features_of(model, server.start, samples)
    one_hot_CC = torch.eye(len(features_CMD), device=features_ND.device)
    members_CN = one_hot_CC[samples.labels_N].T
    number_C1 = members_CN.sum(1, keepdim=True)
    means_CD = members_CN @ features_ND / number_C1  # 0 / 0 is the NaN
    learned_means_CD = features_CMD.mean(1)
    of_means_C = 1 - F.cosine_similarity(learned_means_CD, means_CD, dim=1)

    # The mean cosine of all pairs is the product of the mean unit vectors.
    mean_units_CD = members_CN @ F.normalize(features_ND, dim=1) / number_C1
    learned_mean_units_CD = F.normalize(features_CMD, dim=2).mean(1)
    of_pairs_C = 1 - (learned_mean_units_CD * mean_units_CD).sum(1)
    by_class = (loss_C, of_means_C, of_pairs_C)
    return {
        name: values_C.tolist() for name, values_C in zip(DISSIMILARITIES, by_class, strict=True)
    }
