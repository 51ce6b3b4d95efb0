"""The rounds as a flwr Strategy: the one adapter between a method's equations and flwr's loop."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy

from client_app.messages import from_flower, to_flower
from strategies.core.exchange import Exchange, NodeAssignment
from strategies.core.questions import ask_class_prior, ask_finally
from strategies.core.rounds import Rounds

log = logging.getLogger("fedskew")


class Strategy(Rounds, FlowerStrategy):
    """A flwr strategy made of a method's parts; any ServerApp can `start` it.

    FedSkew's own ServerApp calls `start` alone. The other methods are what flwr's interface demands, and what a loop
    other than ours would call: with them alone a round comes out the same to the bit, but nobody is asked a question.
    """

    assignment: NodeAssignment
    """Who was asked for whom, between `configure_train` and `aggregate_train`."""

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds after `self.round` up to `num_rounds`, with true round numbers.

        Unlike flwr's own loop it can begin in the middle, and asks again for clients whose worker died.
        `evaluate_fn` is called after every round, and ends the run by setting `ended`. Without rounds the heads in
        closed form are deployed, as round 0.
        """
        self.exchange_settings = replace(self.exchange_settings, timeout=timeout)
        ask_class_prior(self, grid)
        arrays = initial_arrays
        result = Result(arrays=initial_arrays)
        if num_rounds == 0 and self.deploys:
            self.deploy_without_rounds()
            if evaluate_fn is not None:
                evaluate_fn(0, arrays)
        for server_round in range(self.round + 1, num_rounds + 1):
            if self.ended:
                break
            clients = self.begin_round(server_round, from_flower(arrays))
            exchange = self.ask(grid, clients, self.training_request())
            self.finish_round(exchange)
            if server_round == num_rounds:
                ask_finally(self, grid)
            arrays = result.arrays = to_flower(self.shared)
            result.train_metrics_clientapp[server_round] = MetricRecord({"loss": self.last.loss})
            measured = None if evaluate_fn is None else evaluate_fn(server_round, arrays)
            if measured is not None:
                result.evaluate_metrics_serverapp[server_round] = measured
        return result

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> list[Message]:
        """Return the round's messages, one a node."""
        clients = self.begin_round(server_round, from_flower(arrays))
        self.assignment = self.assigner.assign(grid, clients, self.exchange_settings)
        return self.training_request().messages(self.assignment)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Return the new shared weights. Raises TooFewReplies when too few of the replies are good."""
        exchange = Exchange(self.sample(server_round), self.largest)
        exchange.receive(replies, self.assignment)
        exchange.close(self.assigner.absent)
        self.finish_round(exchange)
        return to_flower(self.shared), MetricRecord({"loss": self.last.loss})

    def configure_evaluate(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> list[Message]:
        """Return no messages: `scoring.evaluate_on_clients` measures what is deployed, which may be several models."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> None:
        """Return nothing, as nothing was asked."""

    def summary(self) -> None:
        """Log what the strategy is made of."""
        names = [part.name for part in self.parts]
        names += [variant.name for variant in self.variants]
        listed = ", ".join(names)
        log.info("%d clients, participation %g: %s", self.clients, self.participation, listed)
