"""Strategies that ask the clients after the last round, and deploy the model under a head made of their answers.

CCVR trains that head on features drawn at the server; heads in closed form solve for it. Both work on the result of any
other strategy as well: `CCVR(model).calibrate(grid, result.arrays)`.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from torch import Tensor

from client_app.client import InvalidReply, Variant
from client_app.state import State
from fedskew.flower.method_strategy import MethodStrategy
from fedskew.flower.questions import ask
from fedskew.flower.records import BROADCAST, UPLOAD, to_record, to_state
from fedskew.flower.replies import check_size, client_order, read
from fedskew.flower.variants import GRID, largest_upload
from strategies.closed_form import ClosedFormHead
from strategies.core.questions import integer_sum, stacked, wrong_shapes
from strategies.core.server import Deployment, ServerMethod
from strategies.core.validation import RejectedUpdate, check_answer, check_samples

log = logging.getLogger("flwr")


class HeadStrategy(MethodStrategy):
    """FedAvg, and a question after the last round, of whose answers a head is made."""

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        *args: Any,
        **named: Any,
    ) -> Result:
        """Run the rounds, calibrate the head, and return the result.

        With `num_rounds=0` the head is made for the initial model, such as one with pretrained weights.
        """
        result = super().start(grid, initial_arrays, num_rounds, *args, **named)
        if num_rounds == 0:
            result.arrays = initial_arrays
        self.calibrate(grid, result.arrays)
        return result

    def calibrate(
        self, grid: Grid, arrays: ArrayRecord, timeout: float = 3600
    ) -> dict[str, Tensor]:
        """Ask the clients about the features of this model and return it under the head made of their answers.

        `arrays` may be what any other strategy has made. The answers leave the clients without noise, also where a
        privacy wrapper or mod protected the training.

        Raises:
            RuntimeError: there is no model, or too few answers can be used.
            SettingError: a setting does not go with the answers, such as a `range` that most features exceed.
        """
        if not len(arrays):
            raise RuntimeError("there is no model to calibrate: no round of the run has made one")
        self._begin(self.server.round, arrays, len(list(grid.get_node_ids())))
        names: list[str] = []
        for part in self.parts:
            if part.final_question:
                made = self._ask_finally(part, grid, arrays, timeout)
            elif isinstance(part, ClosedFormHead):
                made = self._in_closed_form(part, grid, arrays, timeout)
            else:
                continue
            self._keep(made)
            number = self.server.round
            self.metrics[number] = {**self.metrics.get(number, {}), **made.metrics}
            names.extend(made.models)
        return self.deployed[names[0]]

    def _ask_finally(
        self, part: ServerMethod, grid: Grid, arrays: ArrayRecord, timeout: float
    ) -> Deployment:
        """Return what a method makes of the answers to its final question. Refused nodes take no part."""
        limit = largest_upload(part.final_question, self.model)
        answers: dict[int, State] = {}
        reasons: list[str] = []
        replies = ask(grid, part.final_question, arrays, timeout, self.min_available_nodes)
        for reply in sorted(replies, key=client_order):
            node = reply.metadata.src_node_id
            try:
                record = answer_record(reply, part.final_question)
                check_size(record, limit, part.final_question)
                statistics = read(to_state, record)
                check_answer(statistics, self.server, part)
                answers[node] = statistics
            except RejectedUpdate as reason:
                reasons.append(str(reason))
                log.warning("node %d is refused: %s", node, reason)
        if not answers:
            raise RuntimeError(
                f"no node's {part.final_question} can be used, the first because: {reasons[0]}; "
                f"use @app.query() and local_round(..., variants=[{part.name!r}]) on the clients"
            )
        self._log_unprotected(part.final_question, len(answers))
        state = self._states[part.name]
        return part.deploy_finally(self.server, state, self.server.start, answers)

    def _in_closed_form(
        self, part: ClosedFormHead, grid: Grid, arrays: ArrayRecord, timeout: float
    ) -> Deployment:
        """Return what a head in closed form makes of sums over all nodes, every one of which must answer."""
        variant = self.server.variants[part.asks]
        before: dict[str, State] = {}
        if needed := variant.upload.question_needs:
            counting = self.server.variants[needed]
            counts = self._answers(part, counting, grid, ArrayRecord(), timeout, before)
            before = {needed: integer_sum(counts)}
        answers = self._answers(part, variant, grid, arrays, timeout, before)
        total = integer_sum(answers)
        for sums in before.values():
            if not torch.equal(sums["counts"], total["counts"]):
                raise RuntimeError(
                    f"the class counts differ between {needed} and {part.asks}: other nodes were connected, or "
                    "their data have changed; calibrate again"
                )
        variant.check_size(int(total["counts"].sum()))
        variant.check_sum(total)
        self._log_unprotected(part.asks, len(answers))
        pooled = stacked(answers) if variant.upload.by_client else total
        server = replace(self.server, answers={part.asks: pooled})
        return part.deploy(server, {}, server.start, [])

    def _answers(
        self,
        part: ServerMethod,
        variant: Variant,
        grid: Grid,
        arrays: ArrayRecord,
        timeout: float,
        broadcast: Mapping[str, State],
    ) -> dict[int, State]:
        """Return every node's answer to a variant's question, numbered in the order of the clients.

        Raises RuntimeError for a node whose answer cannot be used.
        """
        question = variant.upload.question
        settings = {name: getattr(variant, name) for name in GRID if hasattr(variant, name)}
        records = {BROADCAST + name: to_record(state) for name, state in broadcast.items()}
        nodes = self.min_available_nodes
        replies = ask(grid, question, arrays, timeout, nodes, settings, records)
        answers: dict[int, State] = {}
        for number, reply in enumerate(sorted(replies, key=client_order)):
            try:
                answers[number] = self._checked_answer(reply, variant, number)
            except (RejectedUpdate, InvalidReply) as reason:
                raise RuntimeError(
                    f"node {reply.metadata.src_node_id}: {question}: {reason}; {part.name} needs every node's "
                    f"answer: use @app.query() and local_round(..., variants=[{part.name!r}]) on the clients"
                ) from reason
        return answers

    def _checked_answer(self, reply: Message, variant: Variant, number: int) -> State:
        """Return a node's answer. Raises RejectedUpdate or InvalidReply for one that must not be summed."""
        record = answer_record(reply, variant.name)
        check_size(record, largest_upload(variant.name, self.model), variant.name)
        answer: State = read(to_state, record)
        upload = variant.upload
        shapes = upload.shapes(self.model) if upload.shapes is not None else {}
        if reason := wrong_shapes(answer, shapes):
            raise RejectedUpdate(reason)
        described = upload.validate(answer, self.model.head.out_features, None)
        check_samples(number, described, "its answer is of", self.server)
        return answer

    @staticmethod
    def _log_unprotected(question: str, nodes: int) -> None:
        """Log that answers are exact."""
        log.info(
            "%s of %d nodes, without noise: no privacy wrapper or mod covers them", question, nodes
        )


class CCVR(HeadStrategy):
    """FedAvg, and `deployed["ccvr"]`: the last average under a head trained on virtual features (Luo et al. 2021).

    Clients: `@app.query()` and `variants=["ccvr"]`. `calibrate` works on any other strategy's result.
    """

    methods = ("ccvr",)


class FedNCM(HeadStrategy):
    """FedAvg, and `deployed["fedncm"]`: the nearest class mean of the features (Legate et al. 2023).

    Clients: `@app.query()` and `variants=["fedncm"]`. This and the heads below take `bits` and `range`, the grid on
    which the clients sum their features as integers.
    """

    methods = ("fedncm",)


class FedLDA(HeadStrategy):
    """FedAvg, and `deployed["fed-lda"]`: a linear discriminant for long tails. Clients: `variants=["fed-lda"]`."""

    methods = ("fed-lda",)


class FedLDAPooled(HeadStrategy):
    """FedLDA with the pooled covariance, `deployed["fed-lda-pooled"]`. Clients: `variants=["fed-lda-pooled"]`."""

    methods = ("fed-lda-pooled",)


class Fed3R(HeadStrategy):
    """FedAvg, and `deployed["fed3r"]`: ridge regression from the features to the classes (Fani et al. 2024).

    Clients: `@app.query()` and `variants=["fed3r"]`.
    """

    methods = ("fed3r",)


def answer_record(reply: Message, question: str) -> ArrayRecord:
    """Return the answer to a question. Raises RejectedUpdate where there is none."""
    if reply.has_error():
        raise RejectedUpdate(reply.error.reason)
    record = reply.content.array_records.get(UPLOAD + question)
    if record is None:
        raise RejectedUpdate(f"it sends no {question}")
    return record
