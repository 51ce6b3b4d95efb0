"""What was run: the data, who holds them, how they were split, and the settings, in a few lines."""

from collections.abc import Iterable, Mapping, Sequence

from fedskew.report.results import ExperimentResults, RunRecords
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS, Scalar
from server_app.settings import defaults

MOST_NAMES = 12
"""Classes whose names are listed."""
SPLIT = ("partition", "alpha", "classes-per-client", "domain-percent", "parts-per-domain", "partition-file",
         "imbalance-factor", "largest-class", "train-images", "holdout-per-class", "unseen-domain")  # fmt: skip
TRAINING = ("model", "rounds", "participation", "local-epochs", "batch-size", "learning-rate")
ELSEWHERE = {"dataset", "classes", "input-shape", "mean", "std", "clients", "method", "seed"}
"""Settings that are said in words, or by the table itself."""


def what_was_run(results: ExperimentResults) -> dict[str, str]:
    """Return by heading what was run, of the plan's settings and of what the finished runs have recorded."""
    runs = list(results.runs.values())
    flat = [run.settings.flat() for run in runs]
    usual = defaults()
    others = [key for key in dict.fromkeys(key for settings in flat for key in settings)
              if key not in {*SPLIT, *TRAINING, *ELSEWHERE, *WITHOUT_EFFECT_ON_NUMBERS}
              and any(settings.get(key, usual[key]) != usual[key] for settings in flat)]  # fmt: skip
    split = values_of(
        flat, [key for key in SPLIT if key == "partition" or unusual(flat, key, usual)]
    )
    partition = ", ".join(filter(None, (split.pop("partition", ""), listed(split))))
    said = {
        "data": data(runs),
        "clients": clients(runs),
        "partition": "every site's own data" if any(run.agreement for run in runs) else partition,
        "training": listed(values_of(flat, TRAINING)),
        "other settings": listed(values_of(flat, others)),
        "seeds": ", ".join(map(str, results.seeds)),
        "tested": tested(results.finished),
        "positive class": positive_classes(results),
    }
    return {heading: text for heading, text in said.items() if text}


def unusual(flat: Sequence[Mapping[str, Scalar]], key: str, usual: Mapping[str, Scalar]) -> bool:
    """Return whether any run has another value than the default; of alpha whether any run looks at it."""
    if key == "alpha":
        return any(
            settings["partition"] in ("lda", "feddf", "llt", "quantity") for settings in flat
        )
    return any(settings.get(key, usual[key]) != usual[key] for settings in flat)


def values_of(flat: Sequence[Mapping[str, Scalar]], keys: Iterable[str]) -> dict[str, str]:
    """Return the values of settings over the runs."""
    known = {
        key: dict.fromkeys(str(settings[key]) for settings in flat if key in settings)
        for key in keys
    }
    return {key: " or ".join(values) for key, values in known.items() if values}


def listed(values: Mapping[str, str]) -> str:
    """Return settings with their values."""
    return ", ".join(f"{key} {value}" for key, value in values.items())


def distinct(texts: Iterable[str]) -> str:
    """Return the distinct texts."""
    return "; ".join(dict.fromkeys(filter(None, texts)))


def data(runs: Sequence[RunRecords]) -> str:
    """Return the data sets with their inputs, classes and samples."""

    def of(run: RunRecords) -> str:
        settings = run.settings.data
        names = settings.class_names
        shown = (
            f": {', '.join(names)}"
            if len(names) <= MOST_NAMES and not all(map(str.isdecimal, names))
            else ""
        )
        return f"{run.data_name}, inputs {settings.input_shape}, {len(names)} classes{shown}"

    return distinct(map(of, runs))


def clients(runs: Sequence[RunRecords]) -> str:
    """Return how many clients there are, and between which bounds their samples lie over the runs."""
    if sites := distinct(", ".join(run.sites) for run in runs if run.agreement):
        return f"{sites}; how many samples of which class each holds is known there alone"
    sizes = [sum(counts) for run in runs if run.samples for counts in run.samples["train"]]
    held = f", {span(sizes)} training samples each" if sizes else ""
    return " or ".join(dict.fromkeys(str(run.settings.data.clients) for run in runs)) + held


def tested(runs: Sequence[RunRecords]) -> str:
    """Return on what the models were tested, and by whom."""
    if any(run.agreement for run in runs):
        return "by the sites, each on its own test set, whose size is known there alone"
    sizes = [sum(run.samples["test"]) for run in runs if run.samples]
    by = distinct(
        record.evaluated_by for run in runs for record in run.records[-1:] if record.models
    )
    whom = {
        "server": "by the server on one test set",
        "clients": "by the clients, each with its own model or test set",
    }
    return ", ".join(
        filter(None, (whom.get(by, ""), f"{span(sizes)} test samples" if sizes else ""))
    )


def positive_classes(results: ExperimentResults) -> str:
    """Return the positive class of two that AUPRC, sensitivity and specificity are about; empty for more classes."""
    runs = [run for group in results.measured.values() for run in group]
    known = [(run, run.positive_class(run.points[-1])) for run in runs]
    return distinct(
        f"{positive.name} ({'stated' if run.run.settings.general.positive_class else positive.why})"
        for run, positive in known
        if positive is not None
    )


def span(values: Sequence[int]) -> str:
    """Return the smallest and the largest of some numbers."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
