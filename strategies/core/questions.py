"""A run: questions to all clients before round 1, the rounds, a question after the last; and the clients' scores."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from client_app.client import Variant
from client_app.local_site import NOT_FINITE, QUESTION
from client_app.metrics import Scores
from client_app.run_spec import RunSpec
from client_app.site_questions import STANDARDIZATION
from client_app.state import State, size
from strategies.core.exchange import EVALUATE, QUERY, Exchange, Grid
from strategies.core.rounds import RoundResult, Rounds
from strategies.core.server import AVERAGE, Diverged
from strategies.core.validation import RejectedUpdate, check_samples, check_upload

ClientScores = dict[str, dict[str, dict[int, Scores]]]
"""By kind of test set, model and client."""


def run_rounds(rounds: Rounds, grid: Grid, last: int, after_round: Callable[[int], object]) -> None:
    """Run the rounds after `rounds.round` up to `last`.

    `after_round` is called with the number of each. Without rounds the heads in closed form are deployed, as round 0.
    """
    ask_class_prior(rounds, grid)
    if last == 0 and rounds.deploys:
        rounds.deploy_without_rounds()
        after_round(0)
    for number in range(rounds.round + 1, last + 1):
        clients = rounds.begin_round(number)
        rounds.finish_round(rounds.ask(grid, clients, rounds.training_request()))
        if number == last:
            ask_finally(rounds, grid)
        after_round(number)


def ask(
    rounds: Rounds,
    grid: Grid,
    task: Mapping[str, int | str],
    broadcast: Mapping[str, State] | None = None,
) -> Exchange:
    """Ask every client a question about the shared weights; `broadcast` goes with it, by variant."""
    sent = {f"broadcast/{name}": state for name, state in (broadcast or {}).items()}
    request = rounds.request(QUERY, task, {"model": rounds.shared, **sent})
    return rounds.ask(grid, range(rounds.clients), request)


def ask_readiness(rounds: Rounds, grid: Grid) -> Exchange:
    """Ask every site whether it can do its part and lets leave what the run asks for; reasons say why one does not."""
    request = rounds.request(QUERY, {"question": QUESTION}, {"model": {}})
    return rounds.ask(grid, range(rounds.clients), request)


def ask_class_prior(rounds: Rounds, grid: Grid) -> bool:
    """Ask all clients, once in a run's life, what a variant must know of all of them; return whether it asked.

    The sum of their answers is sent with every round, as that variant's broadcast. Every client must answer.

    Raises:
        SettingError: a variant's settings do not go with that sum.
        TooFewReplies: a client does not answer.
    """
    asked = False
    columns = rounds.column_sums
    if columns is not None and STANDARDIZATION not in rounds.states:
        # First, as features depend on mean and std.
        total = answers_of_all(rounds, grid, columns)
        rounds.states[STANDARDIZATION] = columns.standardization(total)
        asked = True
    # A question that needs another's sum comes after all others.
    for variant in sorted(rounds.variants, key=lambda one: one.upload.question_needs != ""):
        if variant.upload.is_answer and variant.name not in rounds.states:
            rounds.states[variant.name] = answers_of_all(rounds, grid, variant)
            asked = True
    return asked


def answers_of_all(rounds: Rounds, grid: Grid, variant: Variant) -> State:
    """Return the sum of all clients' answers to a variant's question, or where it says so the answers stacked.

    With masked sums no site's own answer is seen. Raises as `ask_class_prior`.
    """
    upload = variant.upload
    broadcast = {}
    if upload.question_needs:
        broadcast[upload.question_needs] = rounds.states[upload.question_needs]
    if rounds.masked_sums is not None:
        run_spec = RunSpec.from_json(rounds.run_spec)
        ask_sites = partial(ask, rounds, grid, broadcast=broadcast)
        sent = {f"broadcast/{name}": state for name, state in broadcast.items()}
        if STANDARDIZATION in rounds.states:
            sent[STANDARDIZATION] = rounds.states[STANDARDIZATION]
        total = rounds.masked_sums.total(ask_sites, variant, run_spec, rounds.server, sent)
        kept = total
        if upload.of_counts is not None:
            total = kept = upload.of_counts(total, rounds.clients)
    else:
        exchange = ask(rounds, grid, {"question": upload.question}, broadcast)
        refuse_invalid(rounds, exchange, variant)
        exchange.check_enough(1.0, f"question {upload.question} for {variant.name}")
        answers = exchange.uploads(variant.name)
        total = integer_sum(answers)
        kept = stacked(answers) if upload.by_client else total
    variant.check_sum(total)
    return kept


def refuse_invalid(rounds: Rounds, exchange: Exchange, variant: Variant) -> None:
    """Refuse every reply without an answer to a variant's question that is what the variant says of it.

    So is one that describes more samples than the client may have: it weighs too much in what is made of all answers.
    """
    examples = rounds.known_examples()
    for client, reply in list(exchange.answers.items()):
        answer = reply.named("upload").get(variant.name)
        if answer is None:
            exchange.refuse(client, f"the reply holds no answer for {variant.name}")
            continue
        try:
            described = check_upload(variant.upload, answer, rounds.server, examples.get(client))
            check_samples(client, described, "its answer is of", rounds.server)
        except RejectedUpdate as reason:
            exchange.refuse(client, str(reason))


def integer_sum(answers: Mapping[int, State]) -> dict[str, Tensor]:
    """Return the sum of the clients' int64 tensors, by name.

    All that the server learns from their answers is this sum, so one of masked integers can take its place.
    """
    return {name: tensor.sum(0) for name, tensor in stacked(answers).items()}


def stacked(answers: Mapping[int, State]) -> dict[str, Tensor]:
    """Return the clients' tensors by name, each (K, ...), in the order of the clients."""
    in_order = [answers[client] for client in sorted(answers)]
    return {name: torch.stack([answer[name] for answer in in_order]) for name in in_order[0]}


def ask_finally(rounds: Rounds, grid: Grid) -> None:
    """After the last round, ask all clients what methods must know of the final model, and deploy what they make.

    It belongs to the last round: its numbers are recorded there, and a run that is killed before that round's
    checkpoint repeats both.
    """
    for part in rounds.deploys:
        if not rounds.asks_finally(part):
            continue
        variant = rounds.server.variants[part.uses]
        question = variant.upload.question
        exchange = ask(rounds, grid, {"question": question})
        refuse_invalid(rounds, exchange, variant)
        min_reply_share = rounds.exchange_settings.min_reply_share
        exchange.check_enough(min_reply_share, f"question {question} for {part.name}")

        answers = exchange.uploads(variant.name)
        began = time.perf_counter()
        result = RoundResult(rounds.shared)
        server = replace(rounds.server, final_answers=answers)
        result.deploy(server, [part], rounds.states, [])
        rounds.adopt(result)

        last = rounds.last
        failures = {client: f"{question}: {reason}" for client, reason in exchange.failures.items()}
        failures |= last.failures  # why a client took no part in the round itself comes first
        server_seconds = last.seconds.server + time.perf_counter() - began
        rounds.last = replace(
            last,
            failures=dict(sorted(failures.items())),
            bytes_down=last.bytes_down + size(rounds.shared) * rounds.clients,
            bytes_up=last.bytes_up + sum(map(size, answers.values())),
            seconds=replace(last.seconds, server=server_seconds),
            metrics={**last.metrics, **result.metrics},
        )


def evaluate_on_clients(
    rounds: Rounds,
    grid: Grid,
    classes: int,
    tested: Mapping[str, Mapping[int, Tensor]],
    personal: Sequence[str],
    personal_alone: bool,
) -> tuple[ClientScores, dict[int, str]]:
    """Return scores by kind of test set, model and client, and why clients are missing from them.

    The models are the deployed ones and `personal`, the names of the clients' own; with `personal_alone` only these.

    A client measures with its own private tensors, on its own test sets, of which `tested` has by kind and client the
    samples of each class, (C,), where the server knows them. Raises TooFewReplies when too few answer, Diverged when no
    model of any client gives numbers.
    """
    names = list(personal) if personal_alone else [*rounds.deployed, *personal]
    task: dict[str, int | str] = {"round": rounds.round, "models": ",".join(names)}
    if personal:
        task["start"] = AVERAGE
    sent = {*names, AVERAGE} if personal else set(names)
    states = {f"deployed/{name}": rounds.deployed[name] for name in rounds.deployed if name in sent}
    exchange = rounds.ask(grid, range(rounds.clients), rounds.request(EVALUATE, task, states))
    scores = scores_of(exchange, names, tested, classes)
    diverged = any(failure.kind == NOT_FINITE for failure in exchange.reported.values())
    if not exchange.answers and diverged:
        raise Diverged(rounds.round, "the models' outputs are not finite at any client")
    min_reply_share = rounds.exchange_settings.min_reply_share
    exchange.check_enough(min_reply_share, f"evaluation after round {rounds.round}")
    return scores, exchange.failures


def scores_of(
    exchange: Exchange,
    models: Collection[str],
    tested: Mapping[str, Mapping[int, Tensor]],
    classes: int,
) -> ClientScores:
    """Return the good scores; an answer with other ones is refused in `exchange`."""
    scores: ClientScores = {kind: {name: {} for name in models} for kind in tested}
    for client, answer in sorted(exchange.answers.items()):
        checked = {}
        try:
            for kind, of_clients in tested.items():
                states = answer.named(kind)
                if states.keys() != set(models):
                    raise ValueError(f"the {kind} scores are not of {sorted(models)}")
                for name, state in states.items():
                    checked[kind, name] = Scores.of(state, classes, of_clients.get(client))
        except ValueError as error:
            exchange.refuse(client, str(error))
            continue
        for (kind, name), client_scores in checked.items():
            scores[kind][name][client] = client_scores
    return scores
