"""Write the tables of docs/guides/flower.md: every pair is tried in one process, and what came of it is written down.

    python scripts/flower_table.py

`works` under a clipping wrapper or mod means more than no error: with a bound on every client's update the model moved
by at most that bound, and no client sent another ArrayRecord.
"""

import logging
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch
    from fake_grid import FakeGrid
    from flower_grid import (
        Net,
        PlainNet,
        client_app,
        client_data,
        initial,
        train,
        weights,
    )
    from flwr.app import Message
    from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
    from flwr.serverapp import strategy as flwr_strategies

    import fedskew.flower as flower
    from client_app.state import norm

PAGE = ROOT / "docs" / "guides" / "flower.md"
BOUND = 0.05
"""The largest norm of a client's update in the tables' runs: small, so that it shrinks every one."""
CLIENTS = 4
REMEDIES = ("wrap FedAvg or ExactFedAvg", "leave out the method or the mod")
"""What the sentence of a refusal ends with."""
FLWR_ERRORS = ("division by zero", "Cannot cast ufunc")
"""Of an update of norm 0, and of integer buffers."""
OFF = {"fraction_evaluate": 0.0}
SMALL = {"features_per_class": 5, "head_steps": 2}
FLWR_STRATEGIES: dict[str, dict[str, Any]] = {
    "FedAvg": {},
    "FedAdam": {"eta": 0.01},
    "FedAvgM": {},
    "FedYogi": {"eta": 0.01},
    "FedAdagrad": {"eta": 0.01},
    "FedMedian": {},
    "FedTrimmedAvg": {},
    "Krum": {},
    "MultiKrum": {"num_nodes_to_select": 2},
    "Bulyan": {},
    "QFedAvg": {"client_learning_rate": 0.05},
}
VARIANTS = (
    "fedshift",
    "reweighting",
    "iwds",
    "fedprox",
    "fedlc",
    "fed-focal",
    "fedrs",
    "fedntd",
    "moon",
    "feddecorr",
    "fedbn",
    "fedper",
    "fedrep",
    "ditto",
    "silobn",
    "singleset",
    "ccvr",
    "fedncm",
    "fed-lda",
    "fed-lda-pooled",
    "fed3r",
    "creff",
    "creff-code",
    "scaffold",
    "ratio-loss",
)
ASKING = ("fedshift", "reweighting")
OWN: dict[str, tuple[type[flower.MethodStrategy], dict[str, Any]]] = {
    "creff": (flower.CReFF, {**SMALL, "feature_steps": 2}),
    "creff-code": (flower.CReFFCode, {"features_per_class": 5, "head_epochs": 1}),
    "scaffold": (flower.Scaffold, {}),
    "ratio-loss": (flower.RatioLoss, {"holdout": True}),
    "ccvr": (flower.CCVR, SMALL),
    "fedncm": (flower.FedNCM, {"range": 32.0}),
    "fed-lda": (flower.FedLDA, {"range": 32.0}),
    "fed-lda-pooled": (flower.FedLDAPooled, {"range": 32.0}),
    "fed3r": (flower.Fed3R, {"range": 32.0}),
}
"""The strategy that a variant belongs to; all others run under any."""
SERVER_METHODS: dict[str, tuple[type[flower.MethodStrategy], dict[str, Any]]] = {
    "ExactFedAvg": (flower.ExactFedAvg, {}),
    "TauNorm": (flower.TauNorm, {}),
    "FedNova": (flower.FedNova, {}),
    "FedDF": (flower.FedDF, {"steps": 2, "batch_size": 8, "holdout": True}),
    "FedBE": (flower.FedBE, {"steps": 2, "batch_size": 8, "models": 1, "holdout": True}),
    "Median": (flower.Median, {}),
    "TrimmedMean": (flower.TrimmedMean, {}),
    "NormClipping": (flower.NormClipping, {}),
}
Wrap = Callable[[Any], Any]


def wrapped(kind: Any, *bound: Any, **settings: Any) -> Wrap:
    """Return what wraps a strategy into one of flwr's clipping strategies, without noise."""
    return lambda inner: kind(inner, 0.0, *bound, CLIENTS, **settings)


def _alone(inner: Any) -> Any:
    return inner


ADAPTIVE: dict[str, float] = {"initial_clipping_norm": BOUND, "clipped_count_stddev": 0.0}
LOCAL_DP = LocalDpMod(BOUND, 1e-9, 1e3, 1e-5)
"""With next to no noise, so that the bound shows."""
PRIVACY: dict[str, tuple[Wrap, Sequence[Any]]] = {
    "alone": (_alone, []),
    "server-side clipping": (
        wrapped(flwr_strategies.DifferentialPrivacyServerSideFixedClipping, BOUND),
        [],
    ),
    "server-side adaptive": (
        wrapped(flwr_strategies.DifferentialPrivacyServerSideAdaptiveClipping, **ADAPTIVE),
        [],
    ),
    "client-side clipping + mod": (
        wrapped(flwr_strategies.DifferentialPrivacyClientSideFixedClipping, BOUND),
        [fixedclipping_mod],
    ),
    "client-side adaptive + mod": (
        wrapped(flwr_strategies.DifferentialPrivacyClientSideAdaptiveClipping, **ADAPTIVE),
        [adaptiveclipping_mod],
    ),
    "LocalDpMod": (_alone, [LOCAL_DP]),
}


def strategy_of(kind: Any, settings: dict[str, Any], net: Any) -> Any:
    """Return a strategy; `holdout=True` stands for some data of the server's."""
    settings = dict(settings)
    if settings.pop("holdout", False):
        settings["holdout"] = client_data(0)
    if issubclass(kind, flower.MethodStrategy):
        return kind(initial(net), **OFF, **settings)
    return kind(**OFF, **settings)


def outcome(
    strategy: Any,
    variants: Sequence[str],
    mods: Sequence[Any],
    net: Any,
    bound: bool,
) -> str:
    """Return "works", "refused: REASON" or "flwr fails: REASON" of one round.

    Raises AssertionError where it is silently unprotected.
    """
    app = client_app(variants, net=net, mods=mods)
    grid = FakeGrid(app)
    records: list[int] = []
    grid.change = lambda number, reply: records.append(count_records(reply))
    try:
        counts = any(name in ASKING for name in variants)
        result = train(strategy, app, rounds=1, counts=counts, net=net, grid=grid)
    except (ArithmeticError, TypeError, RuntimeError, ValueError) as error:
        return failed(str(error))
    reasons = [*map(str, grid.errors), *grid.refusals]
    if not len(result.arrays):
        return failed(reasons[0])
    assert not reasons, reasons
    if bound:
        assert max(records) <= 1, "an ArrayRecord beside the model passed a privacy mod"
        start, end = initial(net).state_dict(), weights(result)
        moved = {
            name: end[name].double() - tensor.double()
            for name, tensor in start.items()
            if tensor.is_floating_point()
        }
        assert norm(moved) <= BOUND * 1.01, "the model moved further than a client may"
    return "works"


def failed(reason: str) -> str:
    """Return "refused: REASON" for a sentence with a remedy, "flwr fails: REASON" for an error of flwr's.

    Raises AssertionError for a reason that is neither.
    """
    if any(remedy in reason for remedy in REMEDIES):
        return f"refused: {reason}"
    assert any(error in reason for error in FLWR_ERRORS), reason
    return f"flwr fails: {reason}"


def count_records(reply: Message) -> int:
    """Return the ArrayRecords in a reply to a train message; 0 in another."""
    if reply.has_error() or "train_loss" not in reply.content.get("metrics", {}):
        return 0
    return len(reply.content.array_records)


def cell(variant: str, privacy: str, net: Any = PlainNet) -> str:
    """Return what comes of a method's clients under a wrapper or mod."""
    kind, settings = OWN.get(variant, (flwr_strategies.FedAvg, {}))
    wrap, mods = PRIVACY[privacy]
    strategy = wrap(strategy_of(kind, settings, net))
    return outcome(strategy, [variant], mods, net, privacy != "alone")


def server_cell(name: str, privacy: str) -> str:
    """Return what comes of a strategy under a wrapper or mod, with plain clients."""
    kind, settings = SERVER_METHODS[name]
    wrap, mods = PRIVACY[privacy]
    # What a method makes of protected models may move further than a client's own update.
    bound = privacy != "alone" and name == "ExactFedAvg"
    return outcome(wrap(strategy_of(kind, settings, PlainNet)), [], mods, PlainNet, bound)


def net_of(variant: str) -> Any:
    """Return the model for a method: one with batch norm for those that keep it."""
    return Net if variant in ("fedbn", "silobn") else PlainNet


def privacy_table() -> str:
    """Return the table of methods and strategies by wrapper and mod."""
    found = {}
    for variant in VARIANTS:
        found[variant] = [cell(variant, privacy, net_of(variant)) for privacy in PRIVACY]
    for name in SERVER_METHODS:
        found[name] = [server_cell(name, privacy) for privacy in PRIVACY]
    return table(["method or strategy", *PRIVACY], found)


def strategy_cell(strategy: str, variant: str) -> str:
    """Return what comes of a method's clients under a strategy of flwr's."""
    kind, net = getattr(flwr_strategies, strategy), net_of(variant)
    return outcome(strategy_of(kind, FLWR_STRATEGIES[strategy], net), [variant], [], net, False)


def strategy_table() -> str:
    """Return the table of methods by strategy of flwr's."""
    found = {}
    for variant in VARIANTS:
        if variant not in OWN:
            found[variant] = [strategy_cell(strategy, variant) for strategy in FLWR_STRATEGIES]
    return table(["method", *(f"`{name}`" for name in FLWR_STRATEGIES)], found)


def short(result: str) -> str:
    """Return a table's word for an outcome."""
    return result.partition(":")[0]


def table(head: Sequence[str], found: dict[str, list[str]]) -> str:
    """Return a Markdown table, in which names with equal outcomes share a row."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, outcomes in found.items():
        names.setdefault(tuple(map(short, outcomes)), []).append(f"`{name}`")
    rows = [[", ".join(equal), *cells] for cells, equal in names.items()]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def written(text: str, name: str, block: str) -> str:
    """Return a page's text with a table between its marks."""
    marks = rf"(<!-- {name}, by scripts/flower_table.py -->\n).*?(<!-- end of {name} -->)"
    return re.sub(marks, lambda found: f"{found[1]}{block}\n{found[2]}", text, flags=re.DOTALL)


TABLES = {"strategies": strategy_table, "privacy": privacy_table}


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    page = PAGE.read_text()
    for name, block in TABLES.items():
        page = written(page, name, block())
    PAGE.write_text(page)
