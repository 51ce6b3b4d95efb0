"""The methods by name, and the parts of each. This module imports nothing slow."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from data import SettingError

Setting = bool | int | float | str
GROUP = "fedskew.methods"
"""The entry points by which installed packages bring methods of their own."""


class ContractViolation(Exception):
    """A rule of the contract of methods that a user's own method breaks."""


@dataclass(frozen=True)
class Method:
    """A name for a set of parts: `a+b` is the union of both."""

    name: str
    what: str
    """What it does, in a few words."""
    paper: str
    reveals: str
    """What it uploads beside the model, and what that tells the server."""
    variants: tuple[str, ...] = ()
    combine: str = ""
    """Empty is FedAvg's mean."""
    deploy: str = ""
    defaults: Mapping[str, Setting] = field(default_factory=dict)
    """Settings that the name stands for, below what the user states."""
    fixed: Mapping[str, Setting] = field(default_factory=dict)
    """Settings without which the name would be wrong: stating another value is an error."""
    parts: tuple[Any, ...] = ()
    """The classes of a user's own parts, which are in no list before the method is loaded."""
    source: str = ""
    """Of a user's own method a hash of its sources; loading it sets that."""

    @property
    def serving(self) -> tuple[str, ...]:
        """The server methods it stands for."""
        return tuple(filter(None, (self.combine, self.deploy)))


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("fedavg", "mean of the clients' models", "McMahan et al., AISTATS 2017", "nothing"),
        Method("fedprox", "a pull towards the round's start in every step", "Li et al., MLSys 2020", "nothing",
               ("proximal",)),
        Method("fedshift", "shifts training logits by the client's class prior over the global one",
               "FedShift: classifier shift for class imbalance", "class counts, once", ("logit-shift",)),
        Method("reweighting", "weighs samples by the global class prior over the client's", "FedShift, Table 1",
               "class counts, once", ("reweighting",)),
        Method("fedbn", "batch norm stays on the client", "Li et al., ICLR 2021",
               "nothing, and sends less", ("local-batch-norm",)),
        Method("iwds", "class-balanced sampling that decays over the rounds", "IWDS: imbalance-weight-decay sampling",
               "nothing", ("resampling",)),
        Method("creff", "the server re-trains the head on learned features that match per-class gradients",
               "Shang et al., IJCAI 2022",
               "head gradients of each class held: which classes; of a single sample its feature",
               ("feature-gradients",), deploy="creff"),
        Method("creff-code",
               "CReFF with every setting of its authors' code: augmented gradients, the bias's row, 300 epochs",
               "Shang et al., IJCAI 2022: the settings of the authors' code",
               "head gradients of each class held, the bias's too: which classes; of a single sample its feature, "
               "exactly",
               ("augmented-gradients",), deploy="creff-code"),
        Method("ccvr", "after the last round, a head trained on features drawn from the classes' Gaussians",
               "Luo et al., NeurIPS 2021",
               "class counts, feature means and covariances, once: of a single sample its feature",
               ("class-statistics",), deploy="ccvr"),
        Method("tau-norm", "the head's rows divided by a power of their norms", "Kang et al., ICLR 2020", "nothing",
               deploy="tau-norm"),
        Method("fed-lda", "a linear discriminant in closed form on fixed features, made for long tails",
               "Fisher 1936; bias correction of this project",
               "class counts, sums of features and of their products weighed by class, once: of few samples the "
               "features",
               ("balanced-statistics", "label-counts"), deploy="fed-lda"),
        Method("fed-lda-pooled", "fed-lda with the pooled covariance, which takes one question",
               "Fisher 1936; bias correction of this project",
               "class counts, sums of features and of their products, once: of few samples the features",
               ("feature-statistics",), deploy="fed-lda-pooled"),
        Method("fed3r", "ridge regression in closed form on fixed features", "Fani et al., ICML 2024",
               "class counts, sums of features and of their products, once: of few samples the features",
               ("feature-statistics",), deploy="fed3r"),
        Method("fedncm", "the nearest class mean of fixed features", "Legate et al., NeurIPS 2023",
               "class counts and sums of features, once: of a single sample its feature", ("class-means",),
               deploy="fedncm"),
        Method("real-features", "CReFF's yardstick: the head re-trained on real balanced images of the server's",
               "Shang et al., IJCAI 2022, Figures 1 and 2", "nothing", deploy="real-features"),
        Method("real-blocks", "CReFF's yardstick: one block re-trained on real balanced images of the server's",
               "Shang et al., IJCAI 2022, Figure 2", "nothing", deploy="real-blocks"),
        Method("feddf", "distills the clients' ensemble into the average, on images of the server's",
               "Lin et al., NeurIPS 2020", "nothing", combine="feddf"),
        Method("fedbe", "distills an ensemble drawn around the clients' models, on images of the server's",
               "Chen and Chao, ICLR 2021", "nothing", combine="fedbe"),
        Method("scaffold", "control variates against the clients' drift", "Karimireddy et al., ICML 2020",
               "the change of its control variate, as large as the model: a mean of its gradients",
               ("control-variates",), combine="scaffold"),
        Method("fednova", "updates divided by the steps that they took", "Wang et al., NeurIPS 2020",
               "nothing: the norm of its steps is in every reply", combine="fednova"),
        Method("median", "every coordinate's median over the clients", "Yin et al., ICML 2018", "nothing",
               combine="median"),
        Method("trimmed-mean", "every coordinate's mean without the lowest and the highest clients",
               "Yin et al., ICML 2018", "nothing", combine="trimmed-mean"),
        Method("norm-clipping", "updates shortened to a bound, or to the median of their norms", "Sun et al., 2019",
               "nothing", combine="norm-clipping"),
        Method("fedavgm", "momentum at the server", "Hsu et al., 2019", "nothing", defaults={"server-momentum": 0.9},
               fixed={"server-optimizer": "momentum"}),
        Method("fedadagrad", "the server's steps divided by the root of their squares' sum",
               "Reddi et al., ICLR 2021", "nothing",
               defaults={"server-learning-rate": 0.1}, fixed={"server-optimizer": "adagrad"}),
        Method("fedadam", "the server's steps divided by the root of their squares' mean", "Reddi et al., ICLR 2021",
               "nothing", defaults={"server-learning-rate": 0.01, "server-momentum": 0.9},
               fixed={"server-optimizer": "adam"}),
        Method("fedyogi", "FedAdam whose squares' mean moves by no more than the new square",
               "Reddi et al., ICLR 2021", "nothing",
               defaults={"server-learning-rate": 0.01, "server-momentum": 0.9},
               fixed={"server-optimizer": "yogi"}),
        Method("ratio-loss", "class weights that the server measures on images of its own", "Wang et al., AAAI 2021",
               "nothing", ("class-weights",), deploy="ratio-loss"),
        Method("fed-focal", "focal loss", "Sarkar et al., 2020; Lin et al., ICCV 2017", "nothing", ("focal",)),
        Method("fedlc", "margins by class counts", "Zhang et al., ICML 2022", "nothing", ("logit-calibration",)),
        Method("fedntd", "the received model's logits of all classes but the sample's own",
               "Lee et al., NeurIPS 2022", "nothing", ("not-true-distillation",)),
        Method("feddecorr", "features that do not correlate within a batch", "Shi et al., ICLR 2023", "nothing",
               ("decorrelation",)),
        Method("fedrs", "the logits of classes that a client lacks count less", "Li and Zhan, KDD 2021", "nothing",
               ("restricted-softmax",)),
        Method("moon", "features near the received model's and far from the client's last ones",
               "Li et al., CVPR 2021", "nothing", ("model-contrast",)),
        Method("feddyn", "a penalty that moves with the clients' gradients", "Acar et al., ICLR 2021", "nothing",
               ("dynamic-regularization",), combine="feddyn"),
        Method("fedexp", "a server step as long as the clients' disagreement allows",
               "Jhunjhunwala et al., ICLR 2023", "nothing", combine="fedexp"),
        Method("fedper", "the head stays on the client, the features are shared", "Arivazhagan et al., 2019",
               "nothing, and sends less", ("local-head",)),
        Method("fedrep", "the head stays on the client and trains first, then the features that are shared",
               "Collins et al., ICML 2021", "nothing, and sends less", ("head-then-features",)),
        Method("ditto", "a model of each client's own, pulled towards the shared one", "Li et al., ICML 2021",
               "nothing", ("personal-model",)),
        Method("silobn", "batch norm's statistics stay on the client, its weights are shared",
               "Andreux et al., DART 2020", "nothing, and sends less",
               ("local-statistics",)),
        Method("singleset", "shares nothing: each client trains alone", "Li et al., ICLR 2021 (lower bar)",
               "nothing, not even the model", ("local-model",)),
        Method("uniform-sampling", "IWDS without class balance: samples drawn with replacement",
               "IWDS (ablation: beta = 0)", "nothing", ("resampling",),
               fixed={"resampling.beta-start": 0.0, "resampling.beta-end": 0.0}),
        Method("fixed-beta-sampling", "IWDS without decay", "IWDS (ablation: no decay)", "nothing", ("resampling",),
               fixed={"resampling.decay": 1.0}),
    )
}  # fmt: skip


def breaks_contract(name: str, reason: str) -> "SettingError":
    """Return the error of a method that breaks the contract."""
    from data import SettingError

    return SettingError("method", name, f"breaks the contract of methods: {reason}")


def no_method(method: str, name: str) -> "SettingError":
    """Return the error of a name in `method` that is none, with the nearest that is."""
    from data import SettingError

    if "," in name:
        remedy = "`fedskew run --method A,B` compares several"
        return SettingError("method", method, "+ composes methods", remedy=remedy)
    rule = f"{name or 'an empty name'} is no method"
    near = difflib.get_close_matches(name, METHODS, 1)
    if near:
        return SettingError("method", method, rule, remedy=f"did you mean {near[0]}?")
    return SettingError("method", method, f"{rule}; known are {', '.join(METHODS)}")
