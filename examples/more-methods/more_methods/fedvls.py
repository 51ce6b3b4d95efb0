"""FedVLS: what the received model knows of vacant classes, and smaller logits (Guo et al. 2025)."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from fedskew.methods import Client, Method, Variant

TINY = 1e-9
"""Added to priors before their logarithm, as in the authors' code: a vacant class gets -20.7 in place of -inf."""


@dataclass(frozen=True)
class VacantClasses(Variant):
    """Train on CE(f(x) + calibration ln P_i, y) + distillation KL(q_g || q) + suppression S.

    q is the softmax over the classes that the client lacks, q_g that of the model as received, in eval mode.

        S = sum_c P_i(c) ln mean_b exp( (f_c(x_b) - ln P_i(c) + ln 1/C) [y_b != c] )

    over the batch: of a sample's own class the exponent is 0. These are the terms of the authors' code (Guo et al.,
    AAAI 2025), with its factors and its 1e-9 beside every prior P_i(c) = n_ic / n_i. Beside a sampler, P_i is the
    distribution that the client draws from. S has no lower bound, so a training loss may be negative.
    Identity: calibration = 0, distillation = 0 and suppression = 0.
    """

    name: ClassVar[str] = "vacant-classes"
    needs: ClassVar[frozenset[str]] = frozenset({"teacher", "uncorrected-prior", "signed-loss"})

    calibration: Annotated[float, Ge(0)] = 1.0
    """Factor on the log prior that is added to the training logits."""
    distillation: Annotated[float, Ge(0)] = 0.1
    """lambda, the strength of the distillation over vacant classes."""
    suppression: Annotated[float, Ge(0)] = 0.005
    """Strength of the penalty of logits of other classes than the label's."""

    def logit_offset(self, client: Client) -> Tensor | None:
        """Return (C,) calibration ln(P_i + 1e-9)."""
        if not self.calibration:
            return None
        return self.calibration * torch.log(client.effective_prior_C + TINY)

    def loss_term(
        self,
        client: Client,
        indices_B: Tensor,
        features_BD: Tensor,
        logits_BC: Tensor,
        teacher_BC: Tensor | None,
    ) -> Tensor:
        term_B = torch.zeros_like(logits_BC[:, 0])
        vacant = (client.counts_C == 0).nonzero().flatten().to(logits_BC.device)
        if self.distillation and len(vacant):
            assert teacher_BC is not None
            student = F.log_softmax(logits_BC[:, vacant], 1)
            received = F.log_softmax(teacher_BC[:, vacant], 1)
            divergence_B = F.kl_div(student, received, reduction="none", log_target=True).sum(1)
            term_B = term_B + self.distillation * divergence_B
        if self.suppression:
            prior_C = client.effective_prior_C.to(logits_BC)
            labels_B = client.labels_N[indices_B]
            term_B = term_B + self.suppression * suppressed(logits_BC, labels_B, prior_C)
        return term_B


def suppressed(logits_BC: Tensor, labels_B: Tensor, prior_C: Tensor) -> Tensor:
    """Return the scalar S: the mean over classes, weighted by the prior, of the log mean exponential of the logits."""
    batch, classes = logits_BC.shape
    log_prior_C = torch.log(prior_C + TINY)
    log_uniform = math.log(1 / classes + TINY)
    balanced_BC = logits_BC - log_prior_C + log_uniform

    # A sample of the class itself stays in the mean, with exponent 0.
    classes_C = torch.arange(classes, device=labels_B.device)
    is_other_BC = labels_B[:, None] != classes_C
    exponents_BC = balanced_BC * is_other_BC
    log_mean_C = torch.logsumexp(exponents_BC, 0) - math.log(batch)
    return (prior_C * log_mean_C).sum()


FEDVLS = Method(
    "fedvls",
    "distills the received model on classes that a client lacks, and keeps other logits small",
    "Guo et al., AAAI 2025",
    "nothing",
    (VacantClasses.name,),
    parts=(VacantClasses,),
)
