"""The ServerApp: settings -> strategy -> rounds -> results."""

import logging
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from client_app.local_site import QUESTION, RUN_SIGNATURE
from client_app.process import choose_device, make_deterministic, tune_allocator
from client_app.site_questions import STANDARDIZATION
from client_app.state import State
from data import Federation
from data.data_warnings import refuse_untrainable, too_large_columns, warnings_of
from data.standardization import sentence_about
from data.text import LineAboutRun, LineSink
from server_app.checkpoint import (
    STATE,
    Checkpoint,
    Writer,
    hashes,
    latest,
)
from server_app.composition import row_name
from server_app.evaluation import by_group
from server_app.plugins import check_new_methods, sources_of
from server_app.record import ModelNumbers, RoundRecord
from server_app.round_selection import summarize
from server_app.run_evaluation import RunEvaluation
from server_app.run_folder import RunFolder
from server_app.run_settings import RunSettings, model_line
from server_app.settings import (
    parse,
    require_absolute,
    settings_of_run_config,
)
from server_app.sites import (
    about_data,
    ask_sites,
    keep_agreement,
    standardization_of,
    write_readiness,
)
from server_app.strategy import federation_of, how_vectorized, model_of, strategy_of
from server_app.trackers import Tracker, trackers_of
from strategies.core.questions import ask_class_prior, run_rounds
from strategies.core.server import Diverged
from strategies.core.update_statistics import UpdateStatistics
from strategies.core.whole_replies import between_sites

app = ServerApp()
log = logging.getLogger("fedskew")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that flwr's run config describes.

    If its key `readiness` names a file, only ask the sites whether they are ready, and write their answers there.
    """
    config = dict(context.run_config)
    file = str(config.pop(QUESTION, ""))
    config.pop(RUN_SIGNATURE, None)  # the sites read it from their own copy of the run config
    config = settings_of_run_config(config)
    if file:
        require_absolute(QUESTION, file)
        write_readiness(between_sites(grid), parse(config), Path(file))
    else:
        run_and_warn(grid, parse(config))


def run_and_warn(grid: Grid, settings: RunSettings) -> None:
    """Print the warnings about the data, and run the settings' experiment.

    Raises DataError for data on which nothing can be trained, and what `run` raises.
    """
    federation = federation_of(settings)
    refuse_untrainable(settings.data, federation)
    print_line(f"model {model_line(settings)}")
    for sentence in warnings_of(settings.data, federation):
        print_line(f"Warning: {sentence}.")
    run(grid if settings.agreement is None else between_sites(grid), settings)


def print_line(line: str) -> None:
    """Print a line unbuffered, so that flwr streams it to the user at once."""
    print(line, flush=True)


def run(grid: Grid, settings: RunSettings, report_line: LineSink = print_line) -> dict[str, Any]:
    """Run the settings' experiment and return its summary; resume from the checkpoint if there is one.

    A finished run is not repeated: its stored summary is returned. Raises SettingError or DataError for bad input,
    TooFewReplies when too few clients send a valid reply, Diverged when the model is no longer finite, and FolderBusy
    when another process works on the run.
    """
    make_deterministic()
    tune_allocator()
    check_new_methods(settings.general.method)
    federation = federation_of(settings)
    folder = RunFolder(settings.folder)
    with folder.begin(settings, federation, report_line) as finished:
        if finished is not None:
            return finished
        work = Run(grid, settings, federation, folder, report_line)
        try:
            return work.finish()
        except Diverged as error:
            divergence = with_remedy(error, settings, federation)
            folder.write_divergence(divergence, settings.training.learning_rate)
            raise divergence from error
        finally:
            for tracker in work.trackers:
                tracker.end(folder.summary())


def with_remedy(error: Diverged, settings: RunSettings, federation: Federation) -> Diverged:
    """Return the same divergence with the run's learning rate and what may help, a table's columns if they do."""
    remedy = error.remedy
    # Between sites the server has no sample to look at.
    columns = "" if settings.agreement else too_large_columns(federation.dataset)
    if columns and federation.standardized_rows:
        remedy = f"{columns}: they are standardized, so look for outliers in such columns, or leave them out"
    elif columns:
        remedy = f"{columns}: standardize or leave out such columns"
    rate = f"learning-rate = {settings.training.learning_rate:g}"
    return Diverged(error.round, error.reason, f"{rate}; {remedy}", error.client)


@dataclass
class Run:
    """One run of an experiment: its strategy, evaluation, records and checkpoints."""

    grid: Grid
    settings: RunSettings
    federation: Federation
    folder: RunFolder
    report_line: LineSink
    trackers: list[Tracker] = field(default_factory=list)
    writer: Writer = field(default_factory=Writer)

    def __post_init__(self) -> None:
        self.round_began = time.perf_counter()
        self.model = model_of(self.settings, self.federation)
        device = choose_device(self.settings.server_device)
        self.strategy = strategy_of(
            self.settings, self.federation, self.model, device, self.folder.note_waiting
        )
        self.evaluation = RunEvaluation(
            grid=self.grid,
            settings=self.settings,
            federation=self.federation,
            strategy=self.strategy,
            model=self.model,
            device=device,
            folder=self.folder,
            report_line=self.report_line,
        )

    def finish(self) -> dict[str, Any]:
        """Resume the run, train its remaining rounds, write all results, and return the summary."""
        began = time.perf_counter()
        self.resume()
        self.write_settings()
        keep_agreement(self.settings, self.folder)
        for tracker in trackers_of(self.settings, self.folder.path, self.folder.rounds()):
            self.trackers.append(tracker)
        agreement = self.settings.agreement
        method = self.settings.general.method
        if agreement is not None:
            ask_sites(self.strategy, self.grid, agreement, method, self.report_line)
        vectorized = how_vectorized(self.settings, self.model, self.federation)
        if vectorized:
            clients = self.settings.training.clients_per_pass
            self.report_line(f"clients-per-pass = {clients}: {vectorized}")
        self.evaluation.report_positive()
        self.train()
        summary = self.summary(vectorized, began)
        self.folder.write_summary(summary)
        self.report_line(LineAboutRun(f"finished: {self.folder.path}"))
        return summary

    def write_settings(self) -> None:
        """Write settings.json: the settings, and what is known of the data and of the user's files."""
        files: dict[str, object] = {}
        if self.settings.model.weights:
            files["weights-sha256"] = self.settings.weights_sha256
        sources = sources_of(self.settings.parts.names)
        if sources:
            files["method's-files"] = sources
        self.folder.write_settings(
            {
                "settings": self.settings.flat(),
                "partition-hash": self.federation.hash,
                **files,
                **about_data(self.federation, self.settings.agreement),
                **standardization_of(self.federation, self.strategy),
            }
        )

    def report_standardization(self) -> None:
        """Report that a table's columns are standardized, and by how many rows; between sites record the numbers."""
        rows = self.federation.standardized_rows
        if STANDARDIZATION in self.strategy.states:
            self.write_settings()
            rows = int(self.strategy.states[STANDARDIZATION]["rows"])
        if rows:
            self.report_line(sentence_about(rows))

    def train(self) -> None:
        """Train the remaining rounds. When this returns, every record and the last checkpoint are on the disk."""
        rounds = self.settings.general.rounds
        with self.writer:
            if ask_class_prior(self.strategy, self.grid):
                self.writer.begin(partial(self.save, self.checkpoint()))
            self.report_standardization()
            run_rounds(self.strategy, self.grid, rounds, self.after_round)
            self.writer.wait()
            # The last round may be checkpointed although its record is lost. It cannot be trained again if no earlier
            # checkpoint is usable. So its model is evaluated again, which makes a new record.
            last = self.strategy.round
            if last in self.folder.lost(last):
                self.after_round(last)

    def summary(self, vectorized: str, began: float) -> dict[str, Any]:
        """Return the summary of the finished run.

        Args:
            vectorized: the line of `how_vectorized`; empty without clients-per-pass.
            began: `time.perf_counter()` when this process started or resumed the run.
        """
        records = self.folder.rounds()
        models = [*self.strategy.deployed, *self.evaluation.personal_models(is_last=True)]
        summary = {
            "run": self.settings.run_id,
            "method": self.settings.general.method,
            "rows": {name: row_name(self.settings.parts, name) for name in models},
            "rounds": self.settings.general.rounds,
            "models": summarize(records),
        }
        if vectorized:
            summary["clients-per-pass"] = vectorized
        return {
            **summary,
            "failures": sum(record.failed for record in records),
            "hash": hashes(self.strategy, self.folder.path),
            "partition-hash": self.federation.hash,
            "seconds-of-this-start": time.perf_counter() - began,
        }

    def resume(self) -> None:
        """Restore the run's state from its newest usable checkpoint; without one, start again from round 1."""
        checkpoint = latest(self.folder, self.report_line)
        if checkpoint is None:
            if self.folder.rounds_file.exists():
                self.report_line("no whole checkpoint: starting again from round 1")
            self.folder.clear()
            return
        for name in STATE:
            setattr(self.strategy, name, getattr(checkpoint, name))
        self.folder.cut_after(checkpoint.round)
        self.folder.warn_missing_rounds(checkpoint.round, self.report_line)
        self.report_line(f"resuming after round {checkpoint.round}{self.folder.other_code()}")

    def checkpoint(self) -> Checkpoint:
        """Return a checkpoint of the round that has just finished.

        It shares its tensors with the strategy, and no later round changes them in place. So it can be written while
        the next round trains.
        """
        state = {name: copy(getattr(self.strategy, name)) for name in STATE}
        return Checkpoint(**state)

    def save(
        self,
        checkpoint: Checkpoint,
        record: RoundRecord | None = None,
        update_statistics: Callable[[], Sequence[UpdateStatistics]] = tuple,
    ) -> None:
        """Write the round's record and its checkpoint, in this order, and report its line.

        A crash in between loses nothing: a resume deletes a record that has no checkpoint and runs its round again.

        Args:
            checkpoint: the state after the round.
            record: the round's record; None before round 1.
            update_statistics: computes the statistics of the clients' updates, which the record gets.
        """
        if record is not None:
            record = replace(record, updates=update_statistics()).shortened()
            self.folder.add_round(record)
            for tracker in self.trackers:
                tracker.round(record)
        checkpoint.save(self.folder.checkpoint_file, self.folder.previous_file)
        if record is not None:
            self.report_line(record.line)

    def line(self, record: RoundRecord) -> str:
        """Return the line about a round: its loss, each model's balanced accuracy, and whose reply is missing."""
        start = "without rounds"  # heads in closed form, and no client has trained
        if record.round:
            rounds = self.settings.general.rounds
            start = f"round {record.round:>3}/{rounds}  loss {record.loss:.3f}"
        words = [start]
        for name, numbers in record.models.items():
            row = row_name(self.settings.parts, name)
            words.append(f"{row} {numbers['balanced-accuracy']:.4f}")
        if record.failures:
            words.append(f"left out: {self.strategy.assigner.listed(record.failures)}")
        return "  ".join(words)

    def after_round(self, round: int) -> None:
        """Evaluate the models if `round` is to be evaluated, and start writing its record and checkpoint.

        The writing goes on in the background while the next round trains.
        """
        began = time.perf_counter()
        due = self.settings.general.is_evaluated(round)
        evaluation = self.evaluation
        evaluation.unmeasured = {}
        kept: dict[str, State] = {}
        is_last = round == self.settings.general.rounds
        models: dict[str, ModelNumbers] = {}
        if due:
            models = evaluation.evaluate(kept, evaluation.personal_models(is_last))
        if is_last:
            self.folder.write_predictions(kept)
        now = time.perf_counter()
        last = self.strategy.last
        seconds = replace(last.seconds, evaluation=now - began, round=now - self.round_began)
        self.round_began = now
        evaluated_by = "nobody"
        if due:
            evaluated_by = "clients" if evaluation.by_clients else "server"
        of_round = replace(
            last,
            round=round,
            failures={**evaluation.unmeasured, **last.failures},
            seconds=seconds,
            metrics={**last.metrics, **by_group(last.metrics, evaluation.groups)},
        )
        record = RoundRecord(**vars(of_round), models=models, evaluated_by=evaluated_by)
        record = replace(record, line=self.line(record))
        statistics = self.strategy.update_statistics
        self.writer.begin(partial(self.save, self.checkpoint(), record, statistics))
        # It refers to all updates. Only the writer keeps a reference now, so that their memory is freed once they are
        # recorded.
        self.strategy.update_statistics = tuple
