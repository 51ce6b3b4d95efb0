"""Verdicts on rows whose model must be the same to the bit in every column and seed."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedskew.report.format import Table, TableCell
from fedskew.report.results import ExperimentResults

ABOUT = (
    "A head in closed form is computed from integer sums over all samples, so how these are split between clients "
    "may change no bit of it. The hash is of all weights of the deployed model, head and shared ones."
)
SHOWN = 16
"""Digits of a hash that the table shows."""


@dataclass(frozen=True)
class ModelVerdict:
    """Whether one row has one model."""

    row: str
    hashes: dict[str, list[str]]
    """The columns and seeds that end in a model, by its hash."""
    missing: int
    """Columns and seeds without a finished run."""

    @property
    def runs(self) -> int:
        """Columns and seeds with a finished run."""
        return sum(map(len, self.hashes.values()))

    @property
    def status(self) -> str:
        """The verdict in words."""
        if len(self.hashes) > 1:
            return "does not hold"
        if self.missing or not self.hashes:
            return "not measured yet"
        return "holds"


def judge_models(results: ExperimentResults) -> list[ModelVerdict]:
    """Return the verdict on each row of `same_model`."""
    return [judge_row(results, row) for row in results.experiment.same_model]


def judge_row(results: ExperimentResults, row: str) -> ModelVerdict:
    """Return the verdict on one row."""
    hashes: dict[str, list[str]] = {}
    missing = 0
    for cell in results.cells:
        if cell.row != row:
            continue
        summary = results.runs[cell.run.run_id].summary or {}
        code = summary.get("model-hashes", {}).get(cell.deployed)
        if code is None:
            missing += 1
            continue
        place = f"{cell.column}, seed {cell.seed}" if cell.column else f"seed {cell.seed}"
        hashes.setdefault(code, []).append(place)
    return ModelVerdict(row, hashes, missing)


def models_in_words(verdicts: Sequence[ModelVerdict]) -> str:
    """Return the verdicts, a sentence per row."""
    sentences = []
    for verdict in verdicts:
        number = len(verdict.hashes)
        models = "one model" if number == 1 else f"{number} models"
        planned = verdict.runs + verdict.missing
        of = f"{verdict.runs} of {planned} runs"
        sentences.append(f"{verdict.row}: {models} in {of}: {verdict.status}.")
    return " ".join(sentences)


def same_model_tables(results: ExperimentResults) -> list[Table]:
    """Return the table of the rows' models; none where the experiment says of no row that it has one."""
    rows = []
    for verdict in judge_models(results):
        status = TableCell(verdict.status, strong=verdict.status == "holds")
        for code, places in verdict.hashes.items():
            where = f"all {len(places)}" if len(verdict.hashes) == 1 else "; ".join(places)
            model = TableCell(code[:SHOWN])
            rows.append([TableCell(verdict.row), status, model, TableCell(where)])
    if not rows:
        return []
    headings = [TableCell(word) for word in ("method", "verdict", "hash", "runs")]
    return [Table("Each model's hash, over all columns and seeds.", headings, rows, wordy=True)]
