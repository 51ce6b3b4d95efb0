"""The study of an unseen domain after the last round: the deployed models, by the source of their batch norm."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from client_app.metrics import evaluate_models
from client_app.models import Classifier
from client_app.state import State, copy, seed_of, size
from client_app.variants.norm_statistics import QUESTION, REFUSAL, PrivateNorm
from data import Federation
from server_app.evaluation import PositiveClass, metrics_from
from server_app.record import Nearest, UnseenSite
from strategies.batch_norm import averaged, distances, norm_layers, reestimated
from strategies.core.exchange import Exchange
from strategies.core.flower_adapter import Strategy
from strategies.core.validation import (
    ExpectedTensors,
    RejectedUpdate,
    check_values,
    differences,
    expected_of,
)

Question = Callable[[str, str, Sequence[int]], Exchange]
"""(question, variant that answers it, clients to ask) -> their answers."""
AS_TRAINED, AVERAGED, NEAREST = "as-trained", "averaged", "nearest"
REESTIMATED, REESTIMATED_AVERAGED = "reestimated", "reestimated-averaged-weights"
WAYS = (AS_TRAINED, AVERAGED, REESTIMATED, REESTIMATED_AVERAGED, NEAREST)
"""Where the site's batch norm comes from: it is shared as everything else; the mean of the answering clients'; the
shared (FedBN: the first) weights and statistics of the site's own inputs; their mean weights and the site's own
statistics; the answering client's whose statistics are nearest to the site's own."""


@dataclass
class Answers:
    """The clients' answers."""

    states: dict[int, State] = field(default_factory=dict)
    refused: list[int] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0


def study(
    question: Question,
    strategy: Strategy,
    federation: Federation,
    build: Callable[[], Classifier],
    device: str,
    positive: PositiveClass | None = None,
) -> tuple[UnseenSite, dict[int, str]]:
    """Return the record of the study, and why clients failed to answer; a refusal is no failure.

    `question` asks the clients, `build` makes the model with its first weights, `positive` is the run's positive class
    of two. Raises TooFewReplies when fewer clients
    answer or refuse than min-reply-share asks for.
    """
    model = build()
    state = model.state_dict()
    private = copy({name: state[name] for name in state if name not in strategy.shared})
    answers = ask(question, strategy, private)
    model.to(device)
    inputs = federation.unseen_inputs(device)

    def at_site(state: State) -> State:
        draws = torch.Generator().manual_seed(seed_of(strategy.server.seed, "unseen site"))
        return reestimated(model, state, inputs, draws)

    layers = [name for name, _ in norm_layers(model)]
    examples = {client: len(federation.train_indices[client]) for client in answers.states}
    states: dict[str, dict[str, State]] = {}
    near: dict[int, float] = {}
    for name, shared in strategy.deployed.items():
        ways: dict[str, State] = {} if private else {AS_TRAINED: shared}
        if layers:
            ways[REESTIMATED] = at_site({**shared, **private})
        if answers.states:
            ways[AVERAGED] = {**shared, **averaged(answers.states, examples)}
        if layers and answers.states:
            if any(f"{layer}.weight" in private for layer in layers):
                ways[REESTIMATED_AVERAGED] = at_site(ways[AVERAGED])
            near = near or distances(model, ways[REESTIMATED], answers.states)
            ways[NEAREST] = {**shared, **answers.states[nearest(federation, near).client]}
        states[name] = {way: ways[way] for way in WAYS if way in ways}
    flat: dict[str, State] = {}
    for name, ways in states.items():
        flat |= {f"{way}/{name}": state for way, state in ways.items()}
    scores = evaluate_models(model, flat, federation.unseen_test(device))
    unseen = federation.unseen
    unavailable = {}
    assert unseen is not None, "the setting unseen-domain"
    if private and not answers.states:
        why = "every client asked refused" if answers.refused else "share-norm-statistics is false"
        unavailable = dict.fromkeys((AVERAGED, NEAREST), why)
    site = UnseenSite(
        domain=unseen.name,
        inputs=len(unseen.train),
        models={
            name: {way: metrics_from(scores[f"{way}/{name}"], positive=positive) for way in ways}
            for name, ways in states.items()
        },
        answered=sorted(answers.states),
        refused=answers.refused,
        bytes_down=answers.bytes_down,
        bytes_up=answers.bytes_up,
        nearest=nearest(federation, near) if near else None,
        unavailable=unavailable or None,
    )
    return site, answers.failures


def ask(question: Question, strategy: Strategy, private: State) -> Answers:
    """Ask the clients that have trained for the tensors they keep, if the run shares them."""
    sharing = ""
    for variant in strategy.variants:
        if isinstance(variant, PrivateNorm) and variant.share_norm_statistics:
            sharing = variant.name  # methods whose variants keep batch norm are not combined
    answers = Answers()
    if not sharing:
        return answers
    exchange = question(QUESTION, sharing, sorted(strategy.memory_rounds))
    expected = expected_of(private)
    for client, answer in exchange.uploads(sharing).items():
        if answer.keys() == REFUSAL.keys():
            answers.refused.append(client)
            continue
        reason = wrong(answer, expected)
        if reason:
            exchange.refuse(client, reason)
        else:
            answers.states[client] = answer
    exchange.check_enough(strategy.exchange_settings.min_reply_share, f"question {QUESTION}")
    for client, reason in sorted(exchange.failures.items()):
        answers.failures[client] = f"{QUESTION}: {reason}"
    answers.bytes_down = size(strategy.shared) * len(exchange.asked)
    answers.bytes_up = sum(map(size, answers.states.values()))
    return answers


def wrong(answer: State, expected: ExpectedTensors) -> str:
    """Return why a client's tensors cannot be used; empty when they can."""
    reason = differences(answer, expected)
    if reason:
        return reason
    try:
        check_values(answer)
    except RejectedUpdate as refusal:
        return str(refusal)
    return ""


def nearest(federation: Federation, distances: Mapping[int, float]) -> Nearest:
    """Return the client with the smallest distance, of two the first."""
    client = min(distances, key=lambda client: distances[client])
    assert federation.domains is not None, "the setting unseen-domain"
    domain = federation.domains[client]
    domain_name = federation.dataset.domain_names[domain]
    return Nearest(client, domain_name, distances)
