"""A round's record: to JSON and back, of both formats, and what a method's numbers must bring."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, RecordDict
from in_process import FinishedRun, TamperingGrid, drop

from data import DataError
from data.readers.catalog import domain_names, members
from fedskew.experiments.experiments import load_experiments
from fedskew.formatting import site_names
from fedskew.report.format import UNITS, unit_of
from server_app.record import ModelNumbers, Nearest, RoundRecord, Seconds, Spread, UnseenSite
from server_app.run_folder import RunFolder, line_of
from strategies.core.server import Unit
from strategies.core.update_statistics import UpdateStatistics
from strategies.registry import SERVER_METHODS

Train = Callable[..., FinishedRun]
NUMBERS = ModelNumbers(
    {"balanced-accuracy": 0.5, "loss": 2.5},
    [0.5, 1.0],
    {"client-accuracy": Spread(0.5, 0.25, 0.25, [0.75, 0.25])},
    ModelNumbers({"balanced-accuracy": 0.75}, [0.25]),
)
FULL = RoundRecord(
    round=3,
    models={"average": NUMBERS},
    evaluated_by="clients",
    loss=0.5,
    clients=[0, 2],
    used=2,
    failures={1: "no reply"},
    failed=1,
    bytes_down=7,
    bytes_up=5,
    seconds=Seconds(1.0, 0.75, 0.5, 0.25, 2.0),
    workers=[{"process": 1, "device": "cpu"}],
    strays=["node 7 sent '3/model', which it was not asked for"],
    updates=[UpdateStatistics(0, 1.5, -0.25, 40)],
    median_norm=1.5,
    unseen=UnseenSite(
        "usps",
        9,
        {"average": {"nearest": NUMBERS}},
        [0],
        [2],
        3,
        4,
        Nearest(0, "mnist", {0: 0.5}),
        {},
    ),
    line="round 3",
    metrics={"matching-loss": 0.25, "class-weights": [1.0, 2.0]},
)


def test_a_record_comes_back_from_json() -> None:
    written = json.loads(json.dumps(FULL.to_json(), allow_nan=False))
    assert RoundRecord.of(written) == FULL and written["format"] == 3 and FULL.shortened() == FULL
    assert written["models"]["average"]["client-accuracy"]["worst-decile"] == 0.25
    assert written["matching-loss"] == 0.25 and written["unseen"]["nearest"]["distances"] == {
        "0": 0.5
    }
    assert "unseen" not in RoundRecord(1).to_json(), "what is not there has no key"


def test_a_record_of_very_many_clients_is_short() -> None:
    many = 100_000
    spread = Spread(0.5, 0.0, 0.05, [(7 * k % many) / many for k in range(many - 1)] + [math.nan])
    whole = RoundRecord(
        1,
        {
            "average": ModelNumbers(
                {"loss": 0.5}, [0.5], {"local-accuracy": spread, "client-accuracy": spread}
            )
        },
        clients=list(range(many)),
        failures=dict.fromkeys(range(many), "no reply"),
        workers=[{"process": k, "device": "cpu"} for k in range(many)],
        updates=[
            UpdateStatistics(k, 0.1 + (k % 977) / 3e4, math.nan if k % 3 else k / many, 40)
            for k in range(many)
        ],
        unseen=UnseenSite(
            "usps",
            9,
            {},
            list(range(many)),
            list(range(many)),
            3,
            4,
            Nearest(5, "mnist", dict.fromkeys(range(many), 0.5)),
        ),
    )
    short = whole.shortened()
    assert len(json.dumps(short.to_json())) < 20_000
    assert (short.used, short.failed, short.clients[:2], list(short.failures)[:2]) == (
        many,
        many,
        [0, 1],
        [0, 1],
    )
    numbers = short.models["average"].spreads["local-accuracy"]
    assert (numbers.mean, numbers.worst, numbers.worst_decile) == (0.5, 0.0, 0.05), (
        "as of all clients"
    )
    assert (
        numbers.values[0] == 0
        and numbers.values[-1] > 0.99
        and numbers.values[50] == pytest.approx(0.505, abs=0.001)
    )
    assert max(update.norm for update in short.updates) == max(
        update.norm for update in whole.updates
    )
    assert min(update.cosine for update in short.updates) == 0.0 and len(short.updates) == 100
    assert short.median_norm == pytest.approx(0.1 + 488 / 3e4, abs=1e-3), (
        "of all, not of those that stand out"
    )


def test_a_run_of_many_clients(train: Train) -> None:
    def lose(asked: Message, records: RecordDict) -> None:
        for client in range(12):
            drop(records, client)

    outcome = train(
        grid=TamperingGrid(lose),
        clients=112,
        alpha=100.0,
        train_images=336,
        local_epochs=1,
        min_samples=1,
        min_reply_share=0.5,
        rounds=1,
    )
    (record,) = outcome.folder.rounds()
    assert (record.used, len(record.clients), record.failed, len(record.failures)) == (
        100,
        100,
        12,
        12,
    )
    assert outcome.summary["failures"] == 12 and len(record.updates) == 100
    assert len(record.models["average"].spreads["local-accuracy"].values) == 100
    assert (
        record.line.endswith("client 9, 2 more")
        and len(outcome.folder.rounds_file.read_text()) < 20_000
    )


def test_what_is_no_number_is_null() -> None:
    record = RoundRecord(
        1,
        {"average": ModelNumbers({"auroc": math.nan}, [math.inf])},
        metrics={"x": [math.nan, 1.0]},
    )
    written = record.to_json()
    assert (written["loss"], written["x"]) == (None, [None, 1.0])
    assert written["models"]["average"] == {"auroc": None, "recall": [None]}
    again = RoundRecord.of(written)
    assert math.isnan(again.loss) and math.isnan(again.models["average"]["auroc"])
    assert math.isnan(again.models["average"]["nothing"])


def test_records_of_format_1_are_read_and_those_of_a_later_version_refused(
    train: Train, tmp_path: Path
) -> None:
    written = train(method="creff").records[0]
    later = ("format", "used", "failed", "median-norm")
    earlier = {name: part for name, part in written.items() if name not in later} | {
        "seconds": {"round": 1.0}
    }
    folder = RunFolder(tmp_path)
    folder.rounds_file.write_text(line_of(earlier))
    (record,) = folder.rounds()
    assert record.to_json() | {"seconds": {}, "workers": []} == {
        **written,
        "seconds": {},
        "workers": [],
    }
    folder.rounds_file.write_text(line_of({**written, "seconds": {}, "format": 4}))
    with pytest.raises(
        DataError, match=r"rounds.jsonl: has format 4, not 3: a later version wrote it"
    ):
        folder.rounds()


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("creff", {"holdout_per_class": 2, "creff__compare_features": True}),
        ("creff-code", {}),
        ("ratio-loss", {"holdout_per_class": 2}),
    ],
)
def test_every_number_of_a_method_has_a_unit(
    method: str, more: dict[str, Any], train: Train
) -> None:
    outcome = train(
        method=method, rounds=1, train_images=0, largest_class=30, imbalance_factor=4, **more
    )
    (record,) = outcome.folder.rounds()
    of_groups = {name for name in record.metrics if re.search("-(many|medium|few)$", name)}
    numbers = record.metrics.keys() - of_groups
    assert numbers and numbers <= SERVER_METHODS[method].units.keys()
    assert {unit_of(name) for name in of_groups} <= {Unit.NONE}


def test_units() -> None:
    names = (
        "few-recall",
        "client-accuracy.worst",
        "loss",
        "matching-loss-few",
        "class-weights",
        "bytes-up",
    )
    assert [unit_of(name).value for name in names] == ["percent", "percent", "nats", "", "", ""]
    assert UNITS.keys() >= {name for method in SERVER_METHODS.values() for name in method.units}


def test_clients_go_by_their_domain_where_it_is_theirs_alone() -> None:
    assert site_names(["0 mnist", "1 usps", "2 usps"]) == ["mnist", "usps-1", "usps-2"]
    assert site_names(["0", "1"]) == ["0", "1"] and site_names([]) == []


def test_sites_in_experiments_yaml_are_domains_of_their_data() -> None:
    named = 0
    for experiment in load_experiments().values():
        for metric in experiment.metrics.values():
            name, _, site = metric.partition(".")
            if name == "client-accuracy" and site != "mean":
                named += 1
                assert site in domain_names(members(str(experiment.settings["dataset"]))), (
                    f"{experiment.name}: {site}"
                )
    assert named == 28
