"""What a file of kept records may have: its keys, and the rules that every value in it follows.

A file comes from elsewhere, so every value is checked against the settings that the run is asked for with.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from data import DataError
from server_app.record import RoundRecord
from server_app.run_folder import rounds_run
from server_app.run_settings import WITHOUT_EFFECT_ON_NUMBERS, RunSettings
from server_app.settings import defaults

SHARES = (
    "accuracy",
    "balanced-accuracy",
    "macro-f1",
    "calibration-error",
    "auroc",
    "auprc",
    "many-recall",
    "medium-recall",
    "few-recall",
)
"""A model's numbers between 0 and 1."""
AMOUNTS = ("loss", "brier")
"""A model's numbers of 0 or more."""
OVER_CLIENTS = (
    "client-accuracy",
    "client-balanced-accuracy",
    "client-auroc",
    "local-accuracy",
)
"""The numbers over the clients that are kept; statements can name them."""
ROUND_KEYS = (
    "round",
    "evaluated-by",
    "loss",
    "failures",
    "used",
    "failed",
    "bytes-down",
    "bytes-up",
    "seconds",
)
"""What is kept of a round's record beside models, devices and the methods' own numbers."""
NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,59}")
"""Of a model, and of a method's own number."""
HASH = re.compile(r"[0-9a-f]{8,64}")


def refuse_constant(name: str) -> None:
    """Raise DataError for NaN or Infinity, which JSON does not have."""
    raise DataError(f"has the number {name}, which JSON does not have")


def check(holds: bool, key: str, rule: str) -> None:
    """Raise DataError for a key's value that breaks a rule."""
    if not holds:
        raise DataError(rule, key=key)


def check_keys(what: str, content: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise DataError for a key that is not known."""
    unknown = sorted(content.keys() - set(known))
    check(not unknown, f"{what}: {unknown[0][:60] if unknown else ''}", "is no key of a kept run")


def check_settings(recorded: Mapping[str, Any], settings: RunSettings) -> None:
    """Raise DataError where a file's settings are not the run's: its name then says another run than it is."""
    planned = settings.flat()
    for key in sorted(planned.keys() | recorded.keys()):
        if key in WITHOUT_EFFECT_ON_NUMBERS:
            continue
        default = defaults().get(key)
        ours, theirs = planned.get(key, default), recorded.get(key, default)
        rule = (
            f"is {theirs!r} in the file and {ours!r} in the run: the file is not of these settings"
        )
        check(theirs == ours, f"settings: {key[:60]}", rule[:300])


def check_versions(versions: Sequence[Any]) -> None:
    """Raise DataError unless versions are short texts."""
    for recorded in versions:
        has_names = isinstance(recorded, dict) and len(recorded) > 0
        check(has_names, "versions", "must be names with texts")
        for name, version in recorded.items():
            rule = "must be a text of at most 100 characters"
            check(is_short_text(version, 100), f"versions: {name[:60]}", rule)


def check_hashes(content: Mapping[str, Any]) -> None:
    """Raise DataError unless the hashes are hexadecimal, and there is one of the whole run."""
    hashes = {**content["hash"], **content.get("model-hashes", {})}
    hashes["all"] = content["hash"].get("all")
    hashes["partition-hash"] = content["partition-hash"]
    for name, value in hashes.items():
        is_hash = isinstance(value, str) and HASH.fullmatch(value) is not None
        check(is_hash, f"hash: {name[:60]}", "must be 8 to 64 hexadecimal digits")
    check(content["failures"] >= 0, "failures", "must be 0 or more")


def check_samples(samples: Mapping[str, Any], settings: RunSettings) -> None:
    """Raise DataError unless the samples are counts by client and class of these settings, or nothing."""
    if not samples:
        return
    classes = settings.data.num_classes
    clients = samples["clients"]
    is_named = all(isinstance(name, str) and name.isprintable() for name in clients)
    check(is_named, "samples: clients", "must be names")
    number = len(clients)
    for key, value in samples.items():
        by_client = key in ("client-test", "client-independent")
        if key == "clients" or (by_client and value is None):
            continue
        if key in ("train", "subjects"):
            shape: tuple[int, ...] = (number, classes)
        elif by_client:
            shape = (number,)
        else:
            check(key in ("test", "tested", "independent"), f"samples: {key[:60]}", "is no key")
            shape = (classes,)
        rule = f"must be counts of shape {' x '.join(map(str, shape))}"
        check(has_shape(value, shape, is_count), f"samples: {key}", rule)


def has_shape(value: Any, shape: Sequence[int], is_right: Callable[[Any], bool]) -> bool:
    """Return whether a value is lists of this shape whose items are all right."""
    if not shape:
        return is_right(value)
    if not isinstance(value, list) or len(value) != shape[0]:
        return False
    return all(has_shape(item, shape[1:], is_right) for item in value)


def is_count(value: Any) -> bool:
    """Return whether a value is an integer of 0 or more."""
    return type(value) is int and value >= 0


def is_short_text(value: Any, longest: int) -> bool:
    """Return whether a value is a printable text of at most so many characters."""
    return isinstance(value, str) and len(value) <= longest and value.isprintable()


def is_share(value: Any) -> bool:
    """Return whether a value is a number between 0 and 1, or null for NaN."""
    return value is None or (type(value) is float and -1e-9 <= value <= 1 + 1e-9)


def is_amount(value: Any) -> bool:
    """Return whether a value is a number of 0 or more, or null for NaN."""
    return value is None or (type(value) is float and 0 <= value < math.inf)


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number, or null for NaN."""
    return value is None or (type(value) is float and math.isfinite(value))


def checked_last_round(content: Mapping[str, Any], settings: RunSettings) -> int:
    """Return the run's last round. Raises DataError for an early end that no such run has."""
    rounds = settings.general.rounds
    if "ended" not in content:
        return rounds
    ended = content["ended"]
    check_keys("ended", ended, ("round", "reason"))
    is_early = type(ended["round"]) is int and 1 <= ended["round"] < rounds
    rule = f"must be a round before round {rounds} of a run with patience"
    check(is_early and settings.general.patience > 0, "ended: round", rule)
    reason = ended["reason"]
    is_text = isinstance(reason, str) and reason.isprintable() and len(reason) <= 200
    check(is_text, "ended: reason", "must be a sentence")
    return rounds_run(content, rounds)


def checked_rounds(rounds: Sequence[Any], settings: RunSettings, last: int) -> list[RoundRecord]:
    """Return the records of all rounds. Raises DataError for a missing round or a number that no such run has."""
    numbers = [record["round"] for record in rounds]
    expected = list(range(1, last + 1)) or [0]
    check(numbers == expected, "rounds", f"must be the rounds {expected[0]} to {last}, each once")
    records = []
    for record in rounds:
        where = f"round {record['round']}"
        check_round(where, record, settings)
        records.append(RoundRecord.of(record))
    return records


def check_round(where: str, record: Mapping[str, Any], settings: RunSettings) -> None:
    """Raise DataError for what a round of such a run cannot have."""
    for key in ("used", "failed", "bytes-down", "bytes-up"):
        check(is_count(record[key]), f"{where}: {key}", "must be a count")
    check(is_number(record["loss"]), f"{where}: loss", "must be a number or null")
    evaluators = ("server", "clients", "nobody")
    rule = f"must be one of {', '.join(evaluators)}"
    check(record["evaluated-by"] in evaluators, f"{where}: evaluated-by", rule)

    seconds = record["seconds"]
    check(isinstance(seconds, dict), f"{where}: seconds", "must be numbers by name")
    for name, value in seconds.items():
        check(is_amount(value), f"{where}: seconds: {name[:60]}", "must be a number of 0 or more")
    for client, reason in record["failures"].items():
        is_reason = client.isdigit() and isinstance(reason, str) and reason.isprintable()
        check(is_reason, f"{where}: failures", "must be reasons by client")
    for worker in record["workers"]:
        check(is_device(worker), f"{where}: workers", "must be devices")

    if settings.general.is_evaluated(record["round"]):
        check(bool(record["models"]), f"{where}: models", "must have the numbers of a model")
    for name, numbers in record["models"].items():
        rule = "must be a model's name: small letters, digits, dots and dashes"
        check(NAME.fullmatch(name) is not None, f"{where}: models: {name[:60]}", rule)
        check_numbers(f"{where}: {name}", numbers, settings)

    # All other keys are numbers that a method reports.
    of_methods = record.keys() - {*ROUND_KEYS, "workers", "models"}
    for key in of_methods:
        is_name = NAME.fullmatch(key) is not None
        check(is_name, f"{where}: {key[:60]}", "is no name of a method's number")
        values = record[key] if isinstance(record[key], list) else [record[key]]
        check(all(map(is_number, values)), f"{where}: {key}", "must be a number, or numbers")


def is_device(worker: Mapping[str, Any]) -> bool:
    """Return whether this is a process's device alone, on a GPU also the GPU's model."""
    has_keys = {"device"} <= worker.keys() <= {"device", "gpu"}
    return has_keys and all(name.isprintable() for name in worker.values())


def check_numbers(where: str, numbers: Mapping[str, Any], settings: RunSettings) -> None:
    """Raise DataError for what the numbers of a model of such a run cannot be."""
    classes = settings.data.num_classes
    for name, value in numbers.items():
        key_of_number = f"{where}: {name[:60]}"
        if name in SHARES:
            check(is_share(value), key_of_number, "must be a number between 0 and 1, or null")
        elif name in AMOUNTS:
            check(is_amount(value), key_of_number, "must be a number of 0 or more, or null")
        elif name == "recall":
            rule = f"must be {classes} numbers between 0 and 1"
            check(has_shape(value, (classes,), is_share), key_of_number, rule)
        elif name == "confusion":
            rule = f"must be {classes} x {classes} counts"
            check(has_shape(value, (classes, classes), is_count), key_of_number, rule)
        elif name == "best":
            check(
                value is True and settings.general.keep_best != "",
                key_of_number,
                "must be true, with keep-best",
            )
        elif name == "positive-class":
            check(value in settings.data.class_names, key_of_number, "must be one of the classes")
        elif name == "validation":
            check_numbers(f"{where}: validation", value, settings)
        else:
            check(name in OVER_CLIENTS, key_of_number, "is no number of a kept run")
            check_keys(key_of_number, value, ("mean", "worst", "worst-decile", "values"))
            values = [value["mean"], value["worst"], value["worst-decile"], *value["values"]]
            check(
                all(map(is_share, values)),
                key_of_number,
                "must be numbers between 0 and 1, or null",
            )


def check_names(rows: Mapping[str, Any], records: Sequence[RoundRecord]) -> None:
    """Raise DataError unless every model of the last round has the name of its row."""
    for model in records[-1].models:
        is_name = is_short_text(rows.get(model), 200)
        check(is_name, f"rows: {model}", "must be the name of the model's row")
