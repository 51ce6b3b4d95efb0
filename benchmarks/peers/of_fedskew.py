"""A work in FedSkew: `python of_fedskew.py WORK ENGINE CLIENTS-PER-PASS`."""

import sys
import tempfile
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path

import fedskew
from benchmarks.peers.work import CLASSES, WORKS, print_result, save


def main(name: str, engine: str, clients_per_pass: str) -> None:
    """Run the work and print what it took."""
    work = WORKS[name]
    with tempfile.TemporaryDirectory(prefix="fedskew-benchmark-") as temporary:
        folder = Path(temporary)
        save(work, folder / "images.npz")
        channels, height, width = work.shape
        result = fedskew.run(
            {
                "method": "fedavg",
                "model": work.model,
                "dataset": f"npz:{folder / 'images.npz'}",
                "classes": str(CLASSES),
                "input-shape": f"{channels}x{height}x{width}",
                "partition": "iid",
                "clients": work.clients,
                "participation": work.sampled / work.clients,
                "learning-rate": work.learning_rate,
                "momentum": 0.0,
                "batch-size": work.batch,
                "local-epochs": work.epochs,
                "rounds": work.rounds,
                "evaluate-every": work.rounds,
                "clients-per-pass": int(clients_per_pass),
                "cache": str(folder / "cache"),
                "results": str(folder / "results"),
            },
            engine=engine,
        )
    seconds = [record.seconds.round for record in result.rounds]
    loss = float(result.numbers()["loss"])
    print_result(version("fedskew"), [0.0, *accumulate(seconds)], loss)


if __name__ == "__main__":
    main(*sys.argv[1:])
