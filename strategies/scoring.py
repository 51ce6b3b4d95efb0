"""The clients' scores of the deployed models, out of their answers."""

from collections.abc import Collection, Sequence

from client_app.scores import Scores
from strategies.exchange import Exchange

ClientScores = dict[str, dict[str, dict[int, Scores]]]
"""By kind of test set, deployed model and client."""


def scores_of(exchange: Exchange, deployed: Collection[str], kinds: Sequence[str], classes: int) -> ClientScores:
    """Return the good scores; an answer with other ones is refused in `exchange`."""
    scores: ClientScores = {kind: {name: {} for name in deployed} for kind in kinds}
    for client in sorted(exchange.answers):
        try:
            measured = {kind: exchange.answers[client].named(kind) for kind in kinds}
            for kind in kinds:
                if measured[kind].keys() != set(deployed):
                    raise ValueError(f"{kind} scores of {sorted(measured[kind])}, not of {sorted(deployed)}")
            checked = {k: {n: Scores.of(state, classes) for n, state in measured[k].items()} for k in kinds}
        except ValueError as error:
            exchange.refuse(client, str(error))
            continue
        for kind in kinds:
            for name, client_scores in checked[kind].items():
                scores[kind][name][client] = client_scores
    return scores
