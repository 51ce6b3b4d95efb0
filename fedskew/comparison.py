"""Methods beside each other from Python: train each with every seed, then tables, figures and the report's page."""

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedskew.api import Result, run

if TYPE_CHECKING:  # these take a second to import, which `import fedskew` does without
    from fedskew.report.document import Document
    from fedskew.report.drawing import Figure
    from server_app.run_settings import Scalar

Method = str | Mapping[str, Mapping[str, Any]]
"""A method's name, or {LABEL: {"method": NAME, SETTING: VALUE, ...}} as an entry of experiments.yaml has it."""
COLUMNS = (
    "method", "metric", "seeds", "mean", "sd", "compared-with", "difference", "low", "high", "distinguishable",
)  # fmt: skip
"""Of a comparison's table."""


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
        file.write_text(render.html([self.document]))
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
    methods: Sequence[Method],
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
    from fedskew.experiments.experiments import experiment
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
