"""FedSkew's server methods as flwr strategies, one class per method, made from the list of methods.

Some ask the clients after the last round, and deploy the model under a head made of their answers: CCVR trains that
head on features drawn at the server, heads in closed form solve for it. Both work on the result of any other strategy
as well: `CCVR(model).calibrate(grid, result.arrays)`.
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

from client_app.client import Variant
from client_app.messages import to_flower
from client_app.state import State
from client_app.variants import VARIANTS
from fedskew.flower.method_strategy import MethodStrategy
from fedskew.flower.questions import ask
from fedskew.flower.records import BROADCAST, UPLOAD, client_order, read, to_state
from fedskew.flower.variants import GRID, has_grid
from server_app.methods import METHODS
from strategies import SERVER_METHODS
from strategies.closed_form import ClosedFormHead
from strategies.core.questions import integer_sum, stacked
from strategies.core.rounds import RoundResult
from strategies.core.server import Server, ServerMethod
from strategies.core.validation import RejectedUpdate, check_samples, check_upload

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
        result = RoundResult(self.server.start)
        for part in self.parts:
            variant = self.server.variants.get(part.uses)
            if variant is not None and variant.upload.at_end:
                answers = self._answers(part, variant, grid, arrays, timeout)
                server = replace(self.server, final_answers=answers)
            elif isinstance(part, ClosedFormHead):
                server = self._with_sums(part, grid, arrays, timeout)
            else:
                continue
            result.deploy(server, [part], self._states, [])
        self._adopt(result)
        return self.deployed[next(iter(result.deployed))]

    def _with_sums(
        self, part: ClosedFormHead, grid: Grid, arrays: ArrayRecord, timeout: float
    ) -> Server:
        """Return the server with the sums over all nodes that a head in closed form needs; every node must answer."""
        variant = self.server.variants[part.uses]
        before: dict[str, State] = {}
        if needed := variant.upload.question_needs:
            counting = self.server.variants[needed]
            before = {
                needed: integer_sum(self._answers(part, counting, grid, ArrayRecord(), timeout))
            }
        answers = self._answers(part, variant, grid, arrays, timeout, before)
        total = integer_sum(answers)
        for sums in before.values():
            if not torch.equal(sums["counts"], total["counts"]):
                raise RuntimeError(
                    f"the class counts differ between {needed} and {part.uses}: other nodes were connected, or "
                    "their data have changed; calibrate again"
                )
        variant.check_sum(total)
        pooled = stacked(answers) if variant.upload.by_client else total
        return replace(self.server, answers={part.uses: pooled})

    def _answers(
        self,
        part: ServerMethod,
        variant: Variant,
        grid: Grid,
        arrays: ArrayRecord,
        timeout: float,
        broadcast: Mapping[str, State] | None = None,
    ) -> dict[int, State]:
        """Return the nodes' answers to a variant's question, numbered in the order of the clients.

        Raises RuntimeError where none can be used, for a head in closed form where one cannot.
        """
        question = variant.upload.question
        settings = {name: getattr(variant, name) for name in GRID if has_grid(variant)}
        records = {BROADCAST + name: to_flower(state) for name, state in (broadcast or {}).items()}
        nodes = self.min_available_nodes
        replies = ask(grid, question, arrays, timeout, nodes, settings, records)
        answers: dict[int, State] = {}
        refused: dict[int, Exception] = {}
        for number, reply in enumerate(sorted(replies, key=client_order)):
            try:
                answers[number] = self._answer(reply, variant, number)
            except RejectedUpdate as reason:
                node = reply.metadata.src_node_id
                refused[node] = reason
                log.warning("node %d is refused: %s", node, reason)
        if refused and ("fixed-features" in part.needs or not answers):
            node, first = next(iter(refused.items()))
            raise RuntimeError(
                f"{question}: node {node} sends no answer that can be used: {first}; use @app.query() and "
                f"local_round(..., variants=[{part.name!r}]) on the clients"
            )
        log.info(
            "%s of %d nodes, without noise: no privacy wrapper or mod covers them",
            question,
            len(answers),
        )
        return answers

    def _answer(self, reply: Message, variant: Variant, number: int) -> State:
        """Return a node's answer. Raises RejectedUpdate for one that must not be used."""
        if reply.has_error():
            raise RejectedUpdate(reply.error.reason)
        record = reply.content.array_records.get(UPLOAD + variant.name)
        if record is None:
            raise RejectedUpdate(f"it sends no {variant.name}")
        answer: State = read(to_state, record)
        described = check_upload(variant.upload, answer, self.server)
        check_samples(number, described, "its answer is of", self.server)
        return answer


class ExactFedAvg(MethodStrategy):
    """FedAvg in float64 and in the order of the clients, so that a run repeats to the bit. Clients: any.

    flwr's FedAvg sums float32 values in the order in which replies arrive.
    """

    exact = True


class TauNorm(MethodStrategy):
    """FedAvg, and `deployed["tau-norm"]`: the head's rows divided by a power of their norms (Kang et al. 2020).

    Clients: any.
    """

    methods = ("tau-norm",)

    def normalize(self, arrays: ArrayRecord) -> dict[str, dict[str, Tensor]]:
        """Return the normalized models of any other strategy's result, by name."""
        self._begin(self.server.round, arrays, 0)
        result = RoundResult(self.server.start)
        result.deploy(self.server, self.parts, self._states, [])
        self._adopt(result)
        return self.deployed


GENERATED = {
    "CCVR": "ccvr",
    "CReFF": "creff",
    "CReFFCode": "creff-code",
    "Fed3R": "fed3r",
    "FedBE": "fedbe",
    "FedDF": "feddf",
    "FedLDA": "fed-lda",
    "FedLDAPooled": "fed-lda-pooled",
    "FedNCM": "fedncm",
    "FedNova": "fednova",
    "Median": "median",
    "NormClipping": "norm-clipping",
    "RatioLoss": "ratio-loss",
    "Scaffold": "scaffold",
    "TrimmedMean": "trimmed-mean",
}
"""The other classes by name, and their methods."""


def strategy_of(name: str) -> type[MethodStrategy]:
    """Return the class of GENERATED with this name."""
    method = METHODS[GENERATED[name]]
    server = SERVER_METHODS[method.serving[0]]
    asks = server.uses != "" and VARIANTS[server.uses]().upload.question != ""
    base = HeadStrategy if asks else MethodStrategy
    clients = f"`variants=[{method.name!r}]`" if method.variants else "any"
    words = f"{method.name}: {method.what} ({method.paper}). Clients: {clients}."
    return type(
        name, (base,), {"methods": (method.name,), "__doc__": words, "__module__": __name__}
    )


STRATEGIES: dict[str, type[MethodStrategy]] = {
    "ExactFedAvg": ExactFedAvg,
    "TauNorm": TauNorm,
    **{name: strategy_of(name) for name in GENERATED},
}
globals().update(STRATEGIES)  # where help() and pickle look for them
