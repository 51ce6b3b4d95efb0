"""Selection of a method: three experiments on validation data, of which the last one decides.

1. Every method trains with one seed, at the learning rate of the settings.
2. The best half of the trainings, and FedAvg's, train at three learning rates with two seeds.
3. The winner, FedAvg and CCVR, each at its best rate, train with ten seeds that nothing was chosen by.

These are ordinary experiments: their runs stand in the results folder, so the same command trains none of them again.
Every run of the three has all rounds. The test set is never read.
"""

import json
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from client_app.local_site import PERMISSIONS
from client_app.ranking import MOST_RANKED
from client_app.state import cores
from data import SettingError, federate, require
from fedskew.diagnosis.planned import line_of, whose_partition
from fedskew.engines import Resources
from fedskew.experiments import Experiment, Row
from fedskew.experiments.plan import in_sections, plan, runs
from fedskew.formatting import plural
from fedskew.report.differences import compare_rows
from fedskew.report.document import CHANCE_REMEDY
from fedskew.report.inference import Estimate
from fedskew.report.results import ExperimentResults, gather
from fedskew.sweep import run_all
from server_app.composition import closed_form_methods, compose
from server_app.methods import METHODS
from server_app.run_folder import RunFolder, write_text
from server_app.run_settings import RunSettings, Scalar, model_line
from server_app.settings import parse

BASELINE, CONSTANT = "fedavg", "ccvr"
"""What the winner is always compared with."""
TRAININGS = ("scaffold", "fedshift", "iwds", "fedbn", "fedprox", "fedlc", "fedavgm")
"""Those that need nothing but what clients have."""
HEADS = ("ccvr", "tau-norm")
"""Heads that are made after the last round, of any training, at next to no cost."""
RATE_FACTORS = (1 / 3, 1.0, 3.0)
FRESH_SEEDS = tuple(range(100, 110))
"""Ten: with five a gain is often unclear and FedAvg is taken too often (docs/results/races.md)."""
VALIDATION_SHARE = 0.2
"""Of the clients' samples, where the data bring no validation samples."""
TARGETS = {
    "balanced-accuracy": "balanced-accuracy",
    "accuracy": "accuracy",
    "site-mean": "local-accuracy.mean",
    "worst-site": "local-accuracy.worst",
    "auroc": "auroc",
}
"""The numbers that can decide, each with its name in the report."""
ALWAYS_UPLOADED = ("model", "scores", "column-sums")
"""By every method, the column sums of tables alone: leaving methods out cannot avoid them."""
HOLDS_COUNTS = ("class-statistics",)
"""Uploads that name each class's number of samples as well."""


def select(
    settings: Mapping[str, Scalar],
    methods: Sequence[str],
    target: str,
    without: Sequence[str],
    minutes: float,
    jobs: int,
    out: Console,
) -> None:
    """Select a method, print how it was chosen, and write RESULTS/select-TARGET.json.

    Args:
        settings: of all runs.
        methods: that are compared with FedAvg and CCVR; none are all that go with the model and the data.
        target: the number that decides.
        without: permissions that no method may need.
        minutes: after which no experiment begins.
        jobs: parallel runs; 0 chooses.
        out: gets what is printed.

    Raises:
        SettingError: an option that cannot be, or minutes that allow no basis for a choice.
    """
    began = time.monotonic()
    require(target in TARGETS, "--target", target, f"must be one of {', '.join(TARGETS)}")
    baseline = parse({**settings, "method": BASELINE})
    require(baseline.general.rounds > 0, "rounds", baseline.general.rounds, "must be at least 1")
    measured = {**settings, "evaluate-on": "validation", "evaluate-every": 0}
    if not federate(baseline.data, 0).validated:
        measured["validation-fraction"] = VALIDATION_SHARE
    baseline = parse({**measured, "method": BASELINE})
    federation = federate(baseline.data, 0)
    classes = federation.dataset.num_classes
    rule = f"is measured for at most {MOST_RANKED} classes, and the data have {classes}"
    require(target != "auroc" or classes <= MOST_RANKED, "--target", target, rule)
    metric = TARGETS[target]
    if federation.test_indices is not None:  # sites are measured on samples of their own
        metric = metric.replace("local-", "client-")
    selection = Selection(measured, baseline, metric, minutes, jobs, out, began)
    out.print(f"model {model_line(baseline)}", markup=False)
    diagnosis = line_of(federation)
    if diagnosis:  # none for a single client
        out.print(f"{whose_partition(baseline.data)}: {diagnosis}", markup=False)
    result = selection.run(selection.usable(methods or all_methods(), without))
    file = Path(baseline.general.results) / f"select-{target}.json"
    write_text(file, json.dumps({**result, "without": list(without)}, indent=2) + "\n")


@dataclass
class Selection:
    """A selection under way."""

    settings: Mapping[str, Scalar]
    """Of all runs, which are evaluated on validation data."""
    baseline: RunSettings
    """FedAvg's with these."""
    metric: str
    """The number that decides, as the report calls it."""
    minutes: float
    jobs: int
    out: Console
    began: float
    """By `time.monotonic`."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Why methods take no part, or none in a later step."""

    @property
    def rounds(self) -> int:
        return self.baseline.general.rounds

    def usable(self, methods: Sequence[str], without: Collection[str]) -> list[str]:
        """Return FedAvg, CCVR and the methods that go with the model and the data and need no permission of `without`.

        Why the others are left out is noted. Raises SettingError where none but FedAvg is left.
        """
        optional = [name for name in PERMISSIONS if name not in ALWAYS_UPLOADED]
        for word in without:
            require(word in optional, "--without", word, f"must be some of {', '.join(optional)}")
        found = []
        for method in dict.fromkeys([BASELINE, CONSTANT, *methods]):
            compose(method)  # a name that there is not is an error
            try:
                run = parse({**self.settings, "method": method})
            except SettingError as error:
                if error.key not in ("model", "method"):
                    raise
                self.left_out[method] = error.rule.removeprefix(f"{method} ")
                continue
            refused = permissions_of(run) & {*without}
            if refused:
                self.left_out[method] = f"uploads {', '.join(sorted(refused))}"
            else:
                found.append(method)
        reasons = "; ".join(f"{name} {reason}" for name, reason in self.left_out.items())
        rule = f"none but FedAvg is left: {reasons}"
        require(len(found) > 1, "--method", ",".join(methods), rule)
        return found

    def run(self, methods: Sequence[str]) -> dict[str, object]:
        """Train the three experiments and return what is to be taken, as JSON."""
        own_rate = self.baseline.training.learning_rate
        first = [self.row(method, own_rate) for method in methods]
        self.refuse_too_few_minutes(first)
        results = self.train(first, (0,))
        best = self.best_half(results, self.ranked(1, results))
        second = []
        for factor in RATE_FACTORS:
            rate = float(f"{factor * own_rate:.3g}")
            second += [self.row(row.method, rate) for row in best]

        self.refuse_late_step(2)
        order = self.ranked(2, self.train(second, (0, 1)))
        last: dict[str, Row] = {}
        for row in [*order, *second]:  # FedAvg is compared with even where it has diverged
            if row is order[0] or row.method in (BASELINE, CONSTANT):
                last.setdefault(row.method, row)

        self.refuse_late_step(3)
        results = self.train(list(last.values()), FRESH_SEEDS)
        self.ranked(3, results)
        self.tell_left_out()
        return self.conclude(results, order[0], last[BASELINE])

    # ---- steps --------------------------------------------------------------------------------------

    def row(self, method: str, rate: float) -> Row:
        """Return a method at a learning rate, with the settings of its own sections."""
        own = in_sections(self.settings, set(compose(method).sections))
        return Row(f"{method} ({rate:g})", method, {**own, "learning-rate": rate})

    def experiment(self, rows: Sequence[Row], seeds: Sequence[int], rounds: int = 0) -> Experiment:
        """Return rows as an experiment; 0 rounds are those of the settings."""
        shared = in_sections(self.settings, {""})
        shared["rounds"] = rounds or self.rounds
        return Experiment(
            name="select",
            title="",
            rows=tuple(rows),
            settings=shared,
            seeds=tuple(seeds),
            metric=self.metric,
        )

    def train(
        self, rows: Sequence[Row], seeds: Sequence[int], rounds: int = 0
    ) -> ExperimentResults:
        """Train an experiment and return its results; finished runs are not repeated."""
        experiment = self.experiment(rows, seeds, rounds)
        cells = plan(experiment)
        _, failed = run_all(runs(cells), cells, self.out, Resources(jobs=self.jobs))
        self.left_out |= failed
        return gather(experiment, {})

    def ranked(self, step: int, results: ExperimentResults) -> list[Row]:
        """Return the rows that have a number in every seed, best first, and print each method's best.

        Raises RuntimeError where there is none.
        """
        means = {}
        for row in results.experiment.rows:
            of_row = results.of(row.label, "", self.metric, "last")
            found = of_row.estimate
            if found is not None and found.n == len(results.experiment.seeds):
                means[row.label] = found.mean
            else:
                diverged = ", ".join(map(str, of_row.diverged))
                reason = f"diverged in seed {diverged}" if diverged else "a run failed"
                self.left_out[row.label] = reason
        if not means:
            raise RuntimeError(f"no method has finished step {step}: {self.left_out}")
        order = [row for row in results.experiment.rows if row.label in means]
        order.sort(key=lambda row: means[row.label], reverse=True)
        best: dict[str, str] = {}
        for row in order:
            best.setdefault(row.method, f"{row.label} {means[row.label]:.1f}")
        what = f"{plural(len(runs(results.cells)), 'run')} of {plural(self.rounds, 'round')}"
        title = f"step {step} of 3, {what}, {self.metric} on validation data"
        self.out.print(f"{title}: {', '.join(best.values())}", markup=False)
        return order

    def best_half(self, results: ExperimentResults, order: Sequence[Row]) -> list[Row]:
        """Return the rows of FedAvg's training, and of the half of the trainings with the best rows, two at least."""
        training = {cell.row: cell.run.run_id for cell in results.cells}
        by_rank = list(dict.fromkeys(training[row.label] for row in order))
        best = by_rank[: max(2, math.ceil(len(by_rank) / 2))]
        rows = results.experiment.rows
        best.append(training[rows[0].label])
        kept = []
        for row in rows:
            if training[row.label] in best:
                kept.append(row)
            elif row in order:
                self.left_out[row.label] = "its training is not in the best half of step 1"
        return kept

    # ---- time ---------------------------------------------------------------------------------------

    def refuse_too_few_minutes(self, rows: Sequence[Row]) -> None:
        """Raise SettingError unless the third step can begin in time, by one round of every training."""
        planned = runs(plan(self.experiment(rows, (0,))))
        if all(RunFolder(run.folder).finished(self.rounds) for run in planned):
            return
        results = self.train(rows, (0,), rounds=1)
        seconds = []
        for one in results.runs.values():
            for record in one.records:
                clients = record.seconds.clients
                once = record.seconds.round - clients  # evaluation and heads
                seconds.append(self.rounds * clients + once)
        # The costliest half, and FedAvg's.
        most = math.ceil(len(seconds) / 2) + 1
        of_step_2 = 2 * len(RATE_FACTORS) * sum(sorted(seconds)[-most:])
        ahead = (sum(seconds) + of_step_2) / (self.jobs or cores())
        needed = (time.monotonic() - self.began + ahead) / 60
        rule = f"trained 1 of {self.rounds} rounds: no basis; give {math.ceil(needed)} minutes"
        require(needed <= self.minutes, "--minutes", self.minutes, rule)

    def refuse_late_step(self, step: int) -> None:
        """Raise SettingError where the minutes have passed."""
        passed = (time.monotonic() - self.began) / 60
        rule = (
            f"passed after step {step - 1} of 3: no basis; the same command begins with step {step}"
        )
        require(passed <= self.minutes, "--minutes", self.minutes, rule)

    # ---- end ----------------------------------------------------------------------------------------

    def conclude(self, last: ExperimentResults, winner: Row, baseline: Row) -> dict[str, object]:
        """Print what the winner has over FedAvg and CCVR, and what to take; return it as JSON."""
        rows = last.experiment.rows
        found = {row.label: last.of(row.label, "", self.metric, "last") for row in rows}
        share = self.baseline.data.validation_fraction
        gains = {}
        lines = []
        above = False
        for other in rows:
            gain = compare_rows(found[winner.label], found[other.label])
            if other == winner or gain is None or gain.n < 2:
                continue
            low, high = ends(gain, share)
            gains[other.method] = [gain.mean, low, high]
            interval = f"{gain.mean:+.1f}, 95 % interval {low:+.1f} to {high:+.1f}"
            seeds = plural(gain.n, "fresh seed")
            lines.append(f"{winner.label} over always {other.label}: {interval}, {seeds}")
            if other == baseline:
                above = low > 0

        # A divergence on fresh seeds counts against whoever it hits.
        if found[winner.label].diverged or found[baseline.label].diverged:
            above = not found[winner.label].diverged
        taken = winner if above else baseline
        if above:
            lines.append(f"winner: {winner.label}")
        elif winner == baseline:
            lines.append("no winner: FedAvg itself is the best on validation data")
        else:
            lines.append("no winner: no method is distinguishable from FedAvg here")
        unfit = found[taken.label].at_chance
        if found[taken.label].diverged:
            unfit = "diverged"
        if unfit:
            lines.append(f"take none of them: {taken.label} {unfit}; {CHANCE_REMEDY}")
        else:
            lines.append(f"take {taken.label}")
        self.out.print("\n".join(lines), markup=False)
        return {
            "take": None if unfit else candidate(taken),
            "winner": candidate(winner) if above else None,
            "first": candidate(winner),
            "gains": gains,
            "lines": lines,
            "left-out": self.left_out,
        }

    def tell_left_out(self) -> None:
        """Print who was left out, by reason."""
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.left_out.items():
            by_reason.setdefault(reason, []).append(name)
        for reason, names in by_reason.items():
            self.out.print(f"left out: {', '.join(names)}: {reason}", markup=False)


def ends(gain: Estimate, share: float) -> tuple[float, float]:
    """Return the ends of the 95 % interval of a gain over two seeds or more.

    It is the report's. Where that is over seeds alone, as of worst-site on one data set, it is wider: the seeds'
    validation samples overlap, so that their spread shows a part of the error alone (Nadeau and Bengio 2003).

    Args:
        gain: by the report.
        share: of the clients' samples, which every seed draws anew for validation; 0 where the data bring them.
    """
    interval = gain.interval
    assert interval is not None
    factor = 1.0
    if interval.resampled == "seeds":
        factor = math.sqrt(1 + gain.n * share / (1 - share))
    below = factor * (gain.mean - interval.low)
    above = factor * (interval.high - gain.mean)
    return gain.mean - below, gain.mean + above


def candidate(row: Row) -> dict[str, Scalar]:
    """Return a method and its learning rate, with what it uploads beside the model."""
    reveals = [METHODS[name].reveals for name in compose(row.method).names]
    uploads = "; ".join(text for text in dict.fromkeys(reveals) if text != "nothing")
    return {
        "method": row.method,
        "learning-rate": row.settings["learning-rate"],
        "uploads": uploads or "nothing",
    }


def all_methods() -> list[str]:
    """Return the methods that are compared where none are stated: every training with every head."""
    methods = [*closed_form_methods(), *HEADS, "creff"]
    for training in TRAININGS:
        methods.append(training)
        for head in HEADS:
            try:
                compose(f"{training}+{head}")
            except SettingError:  # a head can need the model to be the same everywhere
                continue
            methods.append(f"{training}+{head}")
    return methods


def permissions_of(run: RunSettings) -> set[str]:
    """Return the permissions that a run needs beside those of every run, as its variants declare them."""
    declared = {variant.upload.permission for variant in run.variants} - {""}
    if declared & {*HOLDS_COUNTS}:
        declared.add("class-counts")
    return declared
