"""What an exchange between sites costs where there is nothing to compute: everything on this machine, TLS and
gateway too.

    python benchmarks/federation.py [--sites 2 4 8] [--rounds 6] [--write docs/guides/deployment.md]

Digits, one step of eight images a site and round. An exchange is a question to every site and its answer; a round has
two, training and evaluation. The median is over both, without the first round, where sites fetch the app and read
their data. What tensors cost is seen beside a model of fewer, with as many bytes and as much to compute. The table says
beside each figure what it is to be; nothing fails where it is more.
"""

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "deploy"))
from local_federation import LocalFederation, write_between

SMALL, FEW, MANY, LARGE = "small-cnn", "vgg-9", "resnet-8", "resnet-18"
TENSORS = {
    SMALL: "8 tensors, 55 kB", FEW: "18 tensors, 6.1 MB", MANY: "56 tensors, 4.9 MB", LARGE: "122 tensors, 45 MB",
}  # fmt: skip
NOTHING = ["local-steps=1", "batch-size=8", "method=fedavg"]
MARKS = "<!-- benchmarks/federation.py -->", "<!-- end of benchmarks/federation.py -->"


def measure(federation: LocalFederation, model: str, rounds: int) -> tuple[float, float]:
    """Return the median seconds of an exchange, and those from the command to the first question of round 1."""
    job = federation.begin([f"model={model}", f"rounds={rounds}", *NOTHING], f"results-{model}")
    first = job.wait_for_round(1)
    job.finish()
    seconds = [record["seconds"] for record in job.records()]
    # The first round's own parts lie between its first question and its record.
    start = first - sum(seconds[0][part] for part in ("clients", "server", "evaluation"))
    exchanges = []
    for parts in seconds[1:]:
        exchanges += [parts["clients"], parts["evaluation"]]
    return statistics.median(exchanges), start


def table(numbers: list[int], rounds: int) -> list[str]:
    """Return the table's lines."""
    rows = [
        "| sites | model | exchange, median | start to the first round |",
        "|---:|---|---:|---:|",
    ]
    medians = {}
    for sites in numbers:
        with tempfile.TemporaryDirectory(prefix="fedskew-") as folder:
            federation = LocalFederation(Path(folder))
            federation.prepare(
                "digits",
                sites,
                "train-images=400",
                "test-images=200",
                "min-samples=8",
            )
            with federation.at_work():
                for model in TENSORS if sites == 4 else (SMALL,):
                    medians[sites, model], start = measure(federation, model, rounds)
                    limits = "15" if model == LARGE else "6.5"
                    rows.append(
                        f"| {sites} | {model} ({TENSORS[model]}) | {medians[sites, model]:.1f} s (at most {limits}) "
                        f"| {start:.0f} s (at most 25) |"
                    )
                    print(rows[-1], flush=True)
    if 4 in numbers:
        few, small = medians[4, MANY] / medians[4, FEW], medians[4, MANY] / medians[4, SMALL]
        rows += [
            "",
            f"56 tensors against 18 of as many bytes: {few:.2f} times the seconds (at most 1.15).",
        ]
        rows += [f"Against 8 of a hundredth of the bytes: {small:.2f} times."]
    return rows


def main() -> None:
    """Measure, print, and write the table where it is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sites", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument(
        "--write", type=Path, help="A text whose table between the marks is replaced."
    )
    stated = parser.parse_args()
    before = os.getloadavg()[0]
    rows = table(stated.sites, stated.rounds)
    rows += ["", f"{os.cpu_count()} cores, load {before:.1f} before."]
    print("\n".join(rows))
    if stated.write:
        write_between(stated.write, MARKS, rows)


if __name__ == "__main__":
    main()
