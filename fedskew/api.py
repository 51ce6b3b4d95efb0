"""The Python interface: run settings, compare methods, read a run's folder as a typed result, list the methods."""

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

# All take a second to import, which `import fedskew` and the command line's --help do without.
if TYPE_CHECKING:
    from fedskew.report.document import Document
    from fedskew.report.drawing import Figure
    from server_app.methods import Method
    from server_app.record import RoundRecord
    from server_app.run_settings import Scalar

Row = str | Mapping[str, Mapping[str, Any]]
"""A method's name, or {LABEL: {"method": NAME, SETTING: VALUE, ...}} as an entry of experiments.yaml has it."""
COLUMNS = (
    "method", "metric", "seeds", "mean", "sd", "compared-with", "difference", "low", "high", "distinguishable",
)  # fmt: skip
"""Of a comparison's table."""


@dataclass(frozen=True)
class Result:
    """A run's folder as it was when it was read: of a finished run, or of one on its way."""

    folder: Path
    settings: Mapping[str, "Scalar"]
    """Every setting in force by its key."""
    rounds: tuple["RoundRecord", ...]
    """The records of the rounds so far."""
    models: Mapping[str, Mapping[str, Any]]
    """The numbers of every deployed model by selection (last, best-test, ...), as in summary.json."""
    hash: str | None
    """The SHA-256 of all weights; None before the last round, or where a client keeps its part on another machine."""
    finished: bool

    @property
    def balanced_accuracy(self) -> float:
        """The last evaluation's balanced accuracy, a share: of the method's model, or of the average where it has none.

        Raises LookupError where nothing has been evaluated, or the method deploys several models beside the average.
        """
        return float(self.numbers()["balanced-accuracy"])

    def numbers(self, model: str = "") -> Mapping[str, Any]:
        """Return a model's numbers on the test set in the last evaluated round, by name.

        `model` is a deployed one; empty is the method's own, or the average where it has none. `models` has the other
        selections. Raises LookupError where there is no such model, or several.
        """
        names = [name for name in self.models if name != "average"] or list(self.models)
        if model:
            names = [name for name in self.models if name == model]
        if len(names) != 1:
            raise LookupError(
                f"{self.folder}: {' and '.join(names) or 'no model'} evaluated; read `models` instead"
            )
        numbers: Mapping[str, Any] = self.models[names[0]]["last"]
        return numbers

    def export(
        self,
        output: str | PathLike[str] | None = None,
        *,
        model: str = "",
        onnx: bool = False,
    ) -> list[Path]:
        """Write a model of this finished run as `fedskew export` does, and return the files, the model's first.

        Args:
            output: folder to write; None is export/MODEL in the run's folder.
            model: the deployed model; empty is the method's own.
            onnx: also write ONNX.

        Raises SettingError or DataError, which are ValueErrors, as the command line does.
        """
        from fedskew.export.from_run import TrainedRun, export
        from server_app.run_folder import RunFolder

        trained = TrainedRun(RunFolder(self.folder, moved=True), model)
        folder = trained.usual_folder if output is None else Path(output)
        return export(trained, folder, onnx)


def run(
    settings: Mapping[str, "Scalar"] | None = None,
    *,
    engine: str = "inprocess",
    workers: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Result:
    """Run what the settings state, from its checkpoint if it has one, and return the result; see `fedskew run`.

    The keys are those of `fedskew list settings`; what is left out has its default. A finished run is not repeated.
    `progress` gets a line a round. The engine `workers` runs clients in `workers` processes, 0 for one a core: a
    script that uses it needs `if __name__ == "__main__":`. Raises SettingError or DataError for bad input, which are
    ValueErrors, RuntimeError for a run that fails.
    """
    from fedskew.engines import Resources, execute
    from fedskew.sweep import refuse_missing_gpus
    from server_app.plugins import check_new_methods
    from server_app.settings import parse

    chosen = parse(settings or {})
    refuse_missing_gpus([chosen], engine)
    check_new_methods(chosen.general.method)
    execute(chosen, Resources(engine, workers=workers), progress or (lambda line: None))
    return load(chosen.folder)


def load(folder: str | PathLike[str]) -> Result:
    """Return what a run's folder holds. Raises DataError for a folder that is no run's."""
    from data import DataError
    from server_app.round_selection import summarize
    from server_app.run_folder import RunFolder

    path = Path(folder)
    run_folder = RunFolder(path, moved=True)
    stated = run_folder.origin()
    if not stated:
        raise DataError(f"{path}: is no run's folder: settings.json is missing or damaged")
    settings = stated["settings"]
    rounds = run_folder.rounds()
    summary = run_folder.finished(settings["rounds"])
    return Result(
        folder=path,
        settings=settings,
        rounds=tuple(rounds),
        models=summarize(rounds) if summary is None else summary["models"],
        hash=None if summary is None else summary["hash"]["all"],
        finished=summary is not None,
    )


def check_method(name: str) -> "Method":
    """Return the method of that name, of one's own as MODULE:CLASS or an installed package's, after trying it.

    Two tiny clients train two rounds with it: it must run where classes are missing, repeat to the bit and change
    nothing that it is given. Prints that it does, as a method that passes has nothing else to show. Raises SettingError
    with the reason why it is none.
    """
    from data import require
    from server_app.method_checks import check
    from server_app.plugins import find

    method = find(name)
    require(method is not None, "method", name, "is no method")
    assert method is not None
    if method.source:  # only a method of the user's own has a hash of its sources
        check(method)
        print(f"{name} keeps the contract of methods: FedSkew trained two tiny clients with it.")
    else:
        print(f"{name} is a method of FedSkew's own, which its tests hold to the contract.")
    return method


def methods() -> dict[str, "Method"]:
    """Return the methods by their names, each with its paper, parts and uploads; `a+b` composes them."""
    from server_app.methods import METHODS

    return dict(METHODS)


# ---- comparisons -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """The finished runs of some methods, with the inference of `fedskew report`."""

    runs: Mapping[str, Sequence[Result]]
    """The results by the method's label, in the order of the seeds."""
    document: "Document"
    """The report."""

    @property
    def headline(self) -> str:
        """The result in a sentence."""
        return self.document.headline

    @property
    def warnings(self) -> Sequence[str]:
        """What makes the runs less comparable than they look, a sentence each."""
        return self.document.results.warnings

    def table(self) -> list[dict[str, Any]]:
        """Return one row per method, for pandas.DataFrame or csv.DictWriter.

        A row has the method's mean and standard deviation over the seeds in the last round, in percent, and the
        difference from the method it is compared with (FedAvg where it is there, else the first) with its 95 %
        interval. What there is not, such as the standard deviation of one seed, is None.
        """
        from fedskew.report.differences import differences

        column = self.document.results.column("")
        difference_of = {one.row.row: one for one in differences(column)}
        rows = []
        for row in column.rows:
            cells: dict[str, Any] = dict.fromkeys(COLUMNS)
            cells |= {"method": row.row, "metric": column.metric, "seeds": len(row.numbers)}
            if row.estimate is not None:
                cells |= {"mean": row.estimate.mean, "sd": row.estimate.sd}
            one = difference_of.get(row.row)
            if one is not None:
                cells["low"], cells["high"] = one.found.ends
                cells["compared-with"] = one.than
                cells["difference"] = one.found.mean
                cells["distinguishable"] = one.distinguishable
            rows.append(cells)
        return rows

    def figures(self) -> "dict[str, Figure]":
        """Return the figures by name, as `fedskew report --figures FOLDER` names its files. Nothing is drawn yet.

        A notebook shows a figure, and its method `save` writes SVG, PDF or PNG.
        """
        from fedskew.report.figures import figures

        return figures(self.document)

    def figure(self, name: str = "curves") -> "Figure":
        """Return one of the figures. Raises LookupError with the names that there are."""
        found = self.figures()
        if name not in found:
            raise LookupError(f"figure {name}: must be one of {', '.join(found)}")
        return found[name]

    def report(self, path: str | PathLike[str]) -> Path:
        """Write the report as one HTML file that opens offline, and return its path."""
        from fedskew.report import render

        file = Path(path)
        file.write_text(render.html([self.document]), encoding="utf-8")
        return file

    def markdown(self) -> str:
        """Return the report as Markdown, without figures."""
        from fedskew.report import render

        return render.markdown([self.document])

    def _repr_html_(self) -> str:
        """Return the headline, the table and the curves, as a notebook shows them."""
        from fedskew.report.render import html_table

        lines = [f"<p>{html.escape(self.headline)}</p>", html_table(self.document.main)]
        for section in self.document.sections:
            if section.key == "differences":
                lines += map(html_table, section.tables)
        lines += [f"<p>{html.escape(warning)}</p>" for warning in self.warnings]
        if "curves" in self.figures():
            lines.append(self.figure("curves").element())
        return "\n".join(lines)


def compare(
    methods: Sequence[Row],
    seeds: Sequence[int] = (0, 1, 2),
    settings: Mapping[str, "Scalar"] | None = None,
    *,
    metric: str = "balanced-accuracy",
    engine: str = "inprocess",
    workers: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Train every method with every seed and return them beside each other.

    The methods share data, partition and initial weights of a seed, so that differences are paired. Finished runs are
    not repeated.

    Args:
        methods: names such as "fedshift" or "fedshift+ccvr", or rows with settings of their own.
        seeds: of data, partition and training; one seed says nothing about others.
        settings: of every run, by the keys of `fedskew list settings`. `fedskew.from_arrays` returns those of data in
            memory.
        metric: the number of the table and the curves, as in the records.
        engine: where clients run, and `workers` and `progress`: as for `fedskew.run`.

    Raises:
        SettingError: a method or setting that there is none of, and data that cannot be trained on.
        RuntimeError: a run that fails.
    """
    from fedskew.experiments import experiment
    from fedskew.experiments.plan import plan, runs
    from fedskew.report.document import document
    from fedskew.report.results import gather

    entry = experiment(
        "comparison",
        {
            "title": "Comparison",
            "methods": list(methods),
            "settings": dict(settings or {}),
            "seeds": list(seeds),
            "metric": metric,
        },
    )
    cells = plan(entry)
    finished = {}
    for run_settings in runs(cells):
        stated = run_settings.flat()
        result = run(stated, engine=engine, workers=workers, progress=progress)
        finished[run_settings.run_id] = result

    of_method: dict[str, list[Result]] = {}
    for cell in cells:
        of_method.setdefault(cell.row, []).append(finished[cell.run.run_id])
    return Comparison(of_method, document(gather(entry, {})))
