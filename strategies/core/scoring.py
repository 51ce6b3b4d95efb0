"""Evaluation of the deployed models on the clients' own test sets."""

import math
from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from client_app.local_site import NOT_FINITE
from client_app.metrics import Scores
from strategies.core.exchange import EVALUATE, Exchange, Grid
from strategies.core.round_result import AVERAGE, Diverged
from strategies.core.rounds import Rounds

ClientScores = dict[str, dict[str, dict[int, Scores]]]
"""By kind of test set, model and client."""
LOCAL = "local-accuracy"
"""How the metrics begin, NAME/MODEL, by which a site tells its local accuracy; the server knows no counts of its."""


def evaluate_on_clients(
    rounds: Rounds,
    grid: Grid,
    classes: int,
    tested: Mapping[str, Mapping[int, Tensor]],
    personal: Sequence[str] = (),
    personal_alone: bool = False,
) -> tuple[ClientScores, dict[int, str], dict[str, dict[int, float]]]:
    """Return scores by kind of test set, model and client, why clients are missing from them, and by model
    what clients tell of their local accuracy, NaN where they do not.

    The models are the deployed ones and `personal`, the names of the clients' own; with `personal_alone` only these.

    A client measures with its own private tensors, on its own test sets, of which `tested` has by kind and client the
    samples of each class, (C,), where the server knows them. Raises TooFewReplies when too few answer, Diverged when no
    model of any client gives numbers.
    """
    names = list(personal) if personal_alone else [*rounds.deployed, *personal]
    task: dict[str, int | str] = {"round": rounds.round, "models": ",".join(names)}
    if personal:
        task["start"] = AVERAGE
    states = {}
    for name, state in rounds.deployed.items():
        if name in names or (personal and name == AVERAGE):
            states[f"deployed/{name}"] = state
    exchange = rounds.ask(grid, range(rounds.clients), rounds.request(EVALUATE, task, states))
    scores = scores_of(exchange, names, tested, classes)
    diverged = any(failure.kind == NOT_FINITE for failure in exchange.reported.values())
    if not exchange.answers and diverged:
        raise Diverged(rounds.round, "the models' outputs are not finite at any client")
    min_reply_share = rounds.exchange_settings.min_reply_share
    exchange.check_enough(min_reply_share, f"evaluation after round {rounds.round}")
    local: dict[str, dict[int, float]] = {name: {} for name in names}
    for client, answer in exchange.answers.items():
        for name, accuracies in local.items():
            accuracies[client] = share(answer.metrics.get(f"{LOCAL}/{name}"))
    return scores, exchange.failures, local


def share(number: float | None) -> float:
    """Return a number that can be a share, or NaN."""
    return number if number is not None and 0 <= number <= 1 else math.nan


def scores_of(
    exchange: Exchange,
    models: Collection[str],
    tested: Mapping[str, Mapping[int, Tensor]],
    classes: int,
) -> ClientScores:
    """Return the good scores; an answer with other ones is refused in `exchange`."""
    kinds = list(tested)
    scores: ClientScores = {kind: {name: {} for name in models} for kind in kinds}
    for client, answer in sorted(exchange.answers.items()):
        measured = {kind: answer.named(kind) for kind in kinds}
        try:
            for kind, states in measured.items():
                if states.keys() != set(models):
                    raise ValueError(f"the {kind} scores are not of {sorted(models)}")
            checked = []
            for kind in kinds:
                in_agreement = tested[kind].get(client)
                for name, state in measured[kind].items():
                    checked.append((kind, name, Scores.of(state, classes, in_agreement)))
        except ValueError as error:
            exchange.refuse(client, str(error))
            continue
        for kind, name, client_scores in checked:
            scores[kind][name][client] = client_scores
    return scores
