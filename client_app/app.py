"""The ClientApp: messages in, reports out; no maths.

A message names the clients that this node plays, so a model travels once a node however many clients there are. One
client that fails answers with an error of its own and does not cost the others their work.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from client_app.memory import forget_all_but, recall, remember
from client_app.messages import named, pack, unpack
from client_app.player import Player, player_of
from client_app.policy import QUESTION, READY
from client_app.process import repeat_to_the_bit
from client_app.scores import measure_all
from client_app.site import installed, reason_of
from client_app.state import State
from client_app.training import train_round

app = ClientApp()

Play = Callable[[Player, int, "Known"], RecordDict]
"""(player, client, what the server knows of it) -> the client's records."""


@dataclass(frozen=True)
class Known:
    """What the server knows of a client: the round of its last update that counts, and the digests that it told."""

    round: int
    memory: str
    data: str

    def recall(self, folder: Path) -> dict[str, dict[str, Tensor]]:
        """Return the client's memory. Raises MemoryLost or Damaged."""
        return recall(folder, self.round, known=self.memory)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train every client that the message names for one round."""
    shared, broadcast = unpack(message.content.array_records["model"]), states(message, "broadcast")
    round = int(str(message.content.config_records["task"]["round"]))

    def play(player: Player, number: int, known: Known) -> RecordDict:
        folder = player.memory_folder(number)
        memory = known.recall(folder)
        forget_all_but(folder, known.round)
        client = player.client(number, round, shared, broadcast, memory, context.node_config)
        began = time.perf_counter()
        report = train_round(client, player.assignment.variants, player.assignment.training)
        if player.policy is not None:
            player.policy.check_update(shared, report)
        digests = {**player.digests, "memory": remember(folder, round, report.memory)}
        return RecordDict(
            {
                "model": pack(report.shared),
                **{f"upload/{name}": pack(state) for name, state in report.uploads.items()},
                "metrics": MetricRecord(
                    {
                        "num-examples": report.examples,
                        "loss": report.loss,
                        "steps": report.trained.steps,
                        "coefficient-sum": report.trained.coefficient_sum,
                        "remembers": int(bool(report.memory)),
                        "seconds": time.perf_counter() - began,
                    }
                ),
                "digests": ConfigRecord({kind: code for kind, code in digests.items() if code}),
                **({} if player.policy is not None else {"worker": worker(player)}),
            }
        )

    return reply(message, play)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Measure every deployed model of the message, with each client's private tensors, on that client's test set."""
    deployed = states(message, "deployed")

    def play(player: Player, number: int, known: Known) -> RecordDict:
        player.check_number(number)
        memory = known.recall(player.memory_folder(number))
        whole = {name: player.whole(shared, memory) for name, shared in deployed.items()}
        scores = {
            f"{kind}/{name}": measured
            for kind, samples in player.test_sets(number).items()
            for name, measured in measure_all(player.model, whole, samples).items()
        }
        records = RecordDict({name: pack(measured.state()) for name, measured in scores.items()})
        if player.policy is not None:  # the server of sites knows no counts
            player.policy.check_scores()
            counts_C = player.policy.counts_C
            local = {name: scores[f"test/{name}"].local_accuracy(counts_C) for name in deployed}
            records["metrics"] = MetricRecord({f"local-accuracy/{name}": value for name, value in local.items()})
        return records

    return reply(message, play)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Answer a question about every client that the message names."""
    shared = unpack(message.content.array_records["model"])
    question = str(message.content.config_records["task"]["question"])

    def play(player: Player, number: int, known: Known) -> RecordDict:
        if question == QUESTION:
            if player.policy is not None:
                player.policy.check_ready()
            return RecordDict({f"upload/{QUESTION}": pack(READY), "digests": ConfigRecord({**player.digests})})
        memory = known.recall(player.memory_folder(number))
        client = player.client(number, 0, shared, {}, memory, context.node_config)
        answers = player.answer(client, question)
        if player.policy is not None:
            player.policy.check_uploads(answers)
        return RecordDict({f"upload/{name}": pack(state) for name, state in answers.items()})

    return reply(message, play)


def states(message: Message, kind: str) -> dict[str, State]:
    """Return the message's states named `kind/NAME`, by NAME."""
    return {name: unpack(record) for name, record in named(message.content.array_records, kind).items()}


def worker(player: Player) -> ConfigRecord:
    """Return which process played a client, on what."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    return ConfigRecord({"process": os.getpid(), "device": player.device, "visible-gpus": visible})


def known_of(task: ConfigRecord) -> Iterator[tuple[int, Known]]:
    """Yield the message's clients, each with what the server knows of it."""
    columns = [task[key] for key in ("clients", "memory", "memory-digests", "data-digests")]
    assert all(isinstance(column, list) for column in columns)
    for client, round, memory, data in zip(*columns, strict=True):
        yield int(client), Known(int(round), str(memory), str(data))


def reply(message: Message, play: Play) -> Message:
    """Play every client of the message and return their records, named `CLIENT/RECORD`; an error where one failed."""
    task, content, sites = message.content.config_records["task"], RecordDict(), installed()
    for number, known in known_of(task):
        repeat_to_the_bit(sites[number].threads if number in sites else 1)
        try:
            player = player_of(str(task["assignment"]), number)
            player.check_data(known.data)
            records = play(player, number, known)
        except Exception as error:
            records = RecordDict({"error": ConfigRecord({"reason": reason_of(error, number)})})
        for name, record in records.items():
            content[f"{number}/{name}"] = record
    repeat_to_the_bit()  # in a rehearsal the server computes in this process as well
    return Message(content, reply_to=message)
