"""CReFF's client side as in its authors' code: head gradients estimated from a few augmented samples."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge

from client_app.client import Client, Contribution, Loss, Requirements, Upload, Variant
from client_app.models.classifier import Classifier
from client_app.variants.feature_gradients import with_bias, with_constant
from data.siamese import siamese


@dataclass(frozen=True)
class AugmentedGradients(Variant):
    """Send g_c, of the re-trained head's weight and bias, for every class c held, as the code beside the paper does.

    g_c is the mean over the repeats of the gradient on some random samples of the class, all changed by one random
    operation. The features come from the model as received, in eval mode. Nothing else changes: {u, v} is FedAvg's to
    the bit. A class with a single sample reveals its feature exactly, as row / bias: with one repeat the feature of one
    augmented image, with more a mean over several; min-class-samples holds such classes back.
    """

    name: ClassVar[str] = "augmented-gradients"
    requirements: ClassVar[Requirements] = Requirements(shared_weights=True, images=True)

    min_class_samples: Annotated[int, Ge(1)] = 1
    """Fewest samples of a class for which the client sends it."""
    repeats: Annotated[int, Ge(1)] = 10
    """Number of draws of samples and of an operation; the gradient is their mean."""
    batch_size: Annotated[int, Ge(1)] = 32
    """Samples of a class in each draw, without replacement; all when there are fewer."""

    @property
    def upload(self) -> Upload:
        return Upload("head-gradients", self.gradient_bytes)

    def gradient_bytes(self, model: Classifier, classes_held: int) -> int:
        """Return the bytes of the class numbers and of the gradients of weight and bias."""
        return classes_held * (8 + 4 * (model.head.weight.numel() + model.head.out_features))

    def extra_samples(self, samples: int, classes_held: int) -> float:
        return self.repeats * min(samples, classes_held * self.batch_size) / 3

    @torch.no_grad()
    def before(self, client: Client, loss: Loss) -> Contribution:
        """Upload {"classes": (n,) int64 ascending, "gradients": (n, C, D + 1)}, the bias's the last column."""
        draws = client.generator(self.name)
        head = client.broadcast[self.name]
        weight_CE = with_bias(head["weight"], head["bias"])
        one_hot_CC = torch.eye(len(weight_CE), device=weight_CE.device)
        held = (client.counts_C >= self.min_class_samples).nonzero().flatten()
        labels = held.tolist()
        members = [(client.labels_N == label).nonzero().flatten() for label in labels]
        total_NCE = weight_CE.new_zeros(len(held), *weight_CE.shape)
        for _ in range(self.repeats):
            for label, members_n, total_CE in zip(labels, members, total_NCE, strict=True):
                order_n = torch.randperm(len(members_n), generator=draws).to(members_n.device)
                chosen_B = members_n[order_n[: self.batch_size]]
                images_B = siamese(client.samples.batch(chosen_B), draws)
                features_BE = with_constant(client.model.features(images_B))
                probabilities_BC = torch.softmax(features_BE @ weight_CE.T, dim=1)
                errors_BC = probabilities_BC - one_hot_CC[label]  # p - e_c
                total_CE += errors_BC.T @ features_BE / len(images_B)
        gradients_NCE = (total_NCE / self.repeats).cpu()
        return Contribution(upload={"classes": held, "gradients": gradients_NCE})
