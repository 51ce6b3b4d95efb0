"""Draw docs/first-result.png from the runs of the experiments it names, which must be finished.

fedskew run quick --set data-root=FOLDER
python docs/first_result.py FOLDER [RESULTS]
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import MaxNLocator

from fedskew.experiments.experiments import find_all
from fedskew.experiments.plan import plan

PANELS = {
    "quick-fedshift": "FedShift: classes missing at clients\nFashion-MNIST, LDA 0.1",
    "quick-creff": "CReFF: a long tail over classes\nFashion-MNIST, imbalance 100",
    "quick-llt": "IWDS: a long tail at every client\nFashion-MNIST, LLT 0.9",
    "quick-fedbn": "FedBN: another scanner at every site\nMNIST, USPS, MNIST-M",
}
COLORS = {"fedavg": "#8a8a8a", "ccvr": "#1f6f8b"}
METHOD_COLOR = "#c1440e"


def curves(name: str, overrides: dict[str, Any]) -> dict[str, tuple[list[int], np.ndarray]]:
    """Return for every row of an experiment its evaluated rounds and (seeds, rounds) balanced accuracies."""
    found: dict[str, list[list[float]]] = {}
    rounds: dict[str, list[int]] = {}
    for cell in plan(*find_all([name]), overrides):
        lines = (cell.run.folder / "rounds.jsonl").read_text().splitlines()
        records = [record for record in map(json.loads, lines) if cell.deployed in record["models"]]
        rounds[cell.row] = [record["round"] for record in records]
        accuracies = [record["models"][cell.deployed]["balanced-accuracy"] for record in records]
        found.setdefault(cell.row, []).append(accuracies)
    return {row: (rounds[row], 100 * np.array(values)) for row, values in found.items()}


def main() -> None:
    """Draw the picture."""
    overrides = {"data-root": sys.argv[1], **({"results": sys.argv[2]} if len(sys.argv) > 2 else {})}
    figure, panels = plt.subplots(1, len(PANELS), figsize=(14, 3.4), layout="constrained")
    for axes, (name, title) in zip(panels, PANELS.items(), strict=True):
        for row, (rounds, values) in curves(name, overrides).items():
            color = COLORS.get(row, METHOD_COLOR)
            axes.plot(rounds, values.mean(0), color=color, marker="o", markersize=3, label=row)
            axes.fill_between(rounds, values.min(0), values.max(0), color=color, alpha=0.15, linewidth=0)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right", fontsize=9, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("balanced accuracy, %\n(mean and range of seeds)")
    figure.savefig(Path(__file__).parent / "first-result.png", dpi=110)


if __name__ == "__main__":
    main()
