"""One of ten clients is hostile: what it does to plain mean, trimmed mean and median on scikit-learn's digits.

    python benchmarks/hostile.py [--seeds 0 1 2] [--rounds 6] [--write docs/results/reliability.md]

Every run is in this process; a grid changes the replies of one client on their way to the server. A line an attack: the
accuracy of each way to combine in percent, mean over seeds, with the largest loss of a seed against the run without
that client (the silent one), and in how many rounds the record of plain mean names the client, and how.
"""

import argparse
import logging
import math
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from flwr.app import Message, MetricRecord, RecordDict

from client_app.messages import pack, unpack
from client_app.state import State
from fedskew.engines.local import LocalGrid
from server_app.app import run
from server_app.record import RoundRecord
from server_app.run_folder import RunFolder
from server_app.settings import parse
from strategies.core.server import Diverged

HOSTILE = 3
"""The client's number."""
COMBINE = ("fedavg", "trimmed-mean", "median")
SETTINGS = {
    "dataset": "digits", "clients": 10, "alpha": 10.0, "model": "mlp-bn", "local-epochs": 2, "learning-rate": 0.05,
    "min-reply-share": 0.9, "device": "cpu",
}  # fmt: skip
Attack = Callable[[State, RecordDict], None]
"""(the model as sent, the reply's records to change in place)"""


def moved(factor: float) -> Attack:
    """Return the attack that multiplies the client's update of the weights; its statistics of batch norm stay."""

    def attack(start: State, records: RecordDict) -> None:
        sent = unpack(records.array_records[f"{HOSTILE}/model"])
        weights = [
            name
            for name in sent
            if not name.endswith(("running_mean", "running_var", "num_batches_tracked"))
        ]
        steps = {name: start[name] + factor * (sent[name] - start[name]) for name in weights}
        records[f"{HOSTILE}/model"] = pack({**sent, **steps})

    return attack


def many_examples(start: State, records: RecordDict) -> None:
    records[f"{HOSTILE}/metrics"] = MetricRecord(
        {**records.metric_records[f"{HOSTILE}/metrics"], "num-examples": 10**18}
    )


def all_nan(start: State, records: RecordDict) -> None:
    sent = unpack(records.array_records[f"{HOSTILE}/model"])
    spoiled = {
        name: tensor * math.nan for name, tensor in sent.items() if tensor.is_floating_point()
    }
    records[f"{HOSTILE}/model"] = pack({**sent, **spoiled})


def silent(start: State, records: RecordDict) -> None:
    for name in [name for name in records if name.startswith(f"{HOSTILE}/")]:
        del records[name]


ATTACKS: dict[str, Attack] = {
    "silent": silent,
    "scaled x 1000": moved(1000.0),
    "sign flipped": moved(-1.0),
    "1e18 examples": many_examples,
    "all NaN": all_nan,
}


class HostileGrid(LocalGrid):
    """Changes what one client answers when it was asked to train."""

    def __init__(self, attack: Attack) -> None:
        super().__init__()
        self.attack = attack

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.asked = list(messages)
        return super().push_messages(self.asked)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        asked = {message.metadata.message_id: message for message in self.asked}
        for reply in super().pull_messages(message_ids):
            if f"{HOSTILE}/model" in reply.content:
                message = asked[reply.metadata.reply_to_message_id]
                self.attack(unpack(message.content.array_records["model"]), reply.content)
            yield reply


def attacked_run(
    results: Path,
    attack: str,
    method: str,
    seed: int,
    rounds: int,
) -> tuple[float, Sequence[RoundRecord]]:
    """Return the last round's accuracy in percent, NaN for a run that diverged, and all records."""
    settings = parse(
        SETTINGS
        | {"method": method, "seed": seed, "rounds": rounds, "results": str(results / attack)}
    )
    with HostileGrid(ATTACKS[attack]) as grid, suppress(Diverged):
        run(grid, settings, lambda line: None)
    records = RunFolder(settings.folder).rounds()
    accuracy = records[-1].models["average"]["accuracy"] if len(records) == rounds else math.nan
    return 100 * accuracy, records


def standing_out(record: RoundRecord) -> str:
    """Return why the client stands out in a round's record: its norm or its direction; "" where it does not."""
    for update in record.updates:
        if update.client == HOSTILE and update.norm > 5 * record.median_norm:
            return "far"
        if update.client == HOSTILE and update.cosine < 0:
            return "against the others"
    return ""


def named(records: Sequence[RoundRecord]) -> str:
    """Return in how many rounds the client is named, and why."""
    reasons = Counter[str]()
    for record in records:
        reason = standing_out(record)
        if reason or HOSTILE in record.failures:
            reasons[reason or "left out"] += 1
    return (
        ", ".join(f"{reason}: {times} of {len(records)}" for reason, times in reasons.items())
        or "never"
    )


def table(seeds: Sequence[int], rounds: int) -> str:
    """Return the table as Markdown."""
    lines = [
        f"| client {HOSTILE} is | {' | '.join(COMBINE)} | in plain mean's records |",
        "|---|" + "---:|" * 3 + "---|",
    ]
    alone: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for attack in ATTACKS:
            cells, words = [], ""
            for method in COMBINE:
                runs = [attacked_run(Path(folder), attack, method, seed, rounds) for seed in seeds]
                accuracies = [accuracy for accuracy, _ in runs]
                without = alone.setdefault(method, accuracies)
                losses = [
                    reference - accuracy
                    for reference, accuracy in zip(without, accuracies, strict=True)
                ]
                lost = math.nan if any(map(math.isnan, losses)) else max(losses)
                mean, most = (
                    f"{statistics.fmean(accuracies):.1f}",
                    f" (at most -{max(0.0, lost):.1f})",
                )
                cells.append("diverges" if math.isnan(lost) else mean + most * (attack != "silent"))
                words = words or named([record for _, records in runs for record in records])
            lines.append(f"| {attack} | {' | '.join(cells)} | {words} |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--write", type=Path)
    stated = parser.parse_args()
    logging.getLogger("fedskew").setLevel(logging.ERROR)  # who is left out
    torch.set_num_threads(1)
    text = table(stated.seeds, stated.rounds)
    if stated.write:
        before, begin, rest = stated.write.read_text().partition("<!-- hostile -->\n")
        _, end, after = rest.partition("<!-- end of hostile -->")
        assert begin and end, f"{stated.write} has no place for the table"
        stated.write.write_text(f"{before}{begin}{text}\n{end}{after}")


if __name__ == "__main__":
    main()
