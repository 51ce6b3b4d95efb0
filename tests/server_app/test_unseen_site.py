"""A site nobody trained with: what is asked, who refuses, what is measured, and that training knows nothing of it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from in_process import FinishedRun, TamperingGrid, drop, kill, small
from sklearn.datasets import load_digits

import client_app.app
from client_app.messages import pack, unpack
from client_app.models import batch_norm_names, build
from client_app.variants.norm_statistics import REFUSAL
from fedskew.cli.results_table import unseen_table
from fedskew.engines.local import LocalGrid
from fedskew.engines.workers import WorkersGrid
from server_app.checkpoint import Checkpoint
from server_app.evaluation import OF_POSITIVE
from server_app.run_folder import RunFolder
from strategies.core.exchange import TooFewReplies

Train = Callable[..., FinishedRun]
SHARES = {
    "fedbn": "local-batch-norm.share-norm-statistics",
    "silobn": "local-statistics.share-norm-statistics",
}
REFUSED = {
    method: key.replace("share-norm-statistics", "refused-by") for method, key in SHARES.items()
}


@pytest.fixture(scope="module")
def scanners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits from three scanners, `twin` with another gain than the first two and `far` with another still."""
    root, digits = tmp_path_factory.mktemp("scanners"), load_digits()
    by_class = np.argsort(digits.target, kind="stable")
    scanners = {"far": (-12, 230), "dim": (4, 120), "plain": (15, 0), "twin": (15, 0)}
    for number, (name, (gain, offset)) in enumerate(scanners.items()):
        share = by_class[number::4]
        images, labels = (
            (digits.images[share] * gain + offset).astype(np.uint8),
            digits.target[share],
        )
        testing = np.arange(len(share)) % 3 == 0
        arrays = {"train_images": images[~testing], "train_labels": labels[~testing]}
        np.savez(
            root / f"{name}.npz", **arrays, test_images=images[testing], test_labels=labels[testing]
        )
    return root


def dataset_of(root: Path, *names: str) -> dict[str, Any]:
    """Return the settings that make these domains the data, one client each."""
    files = ",".join(f"npz:{root}/{name}.npz" for name in names)
    data = {
        "dataset": f"domains:{files}",
        "classes": "10",
        "input-shape": "1x8x8",
        "train_images": 100,
    }
    return {**data, "test_images": 50, "clients": 0, "alpha": 0.1, "min_samples": 10}


@pytest.fixture
def unseen(scanners: Path) -> dict[str, Any]:
    return {
        **dataset_of(scanners, "far", "dim", "plain", "twin"),
        "unseen_domain": "twin",
        "rounds": 3,
    }


def ways(outcome: FinishedRun, name: str = "average") -> dict[str, dict[str, Any]]:
    return dict(outcome.summary["unseen"]["models"][name])


def same_numbers(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return left["recall"] == right["recall"] and left["loss"] == pytest.approx(
        right["loss"], rel=1e-5
    )


def test_shared_batch_norm_and_the_first_two_identities(
    train: Train, unseen: dict[str, Any]
) -> None:
    """SiloBN trains FedAvg's weights to the bit, since training never looks at running statistics. So its averaged
    statistics, of sites of one size, are FedAvg's, and what both estimate anew is the same."""
    plain = train("plain", method="fedavg", **unseen)
    silobn = train("silobn", method="silobn", **unseen, **{SHARES["silobn"]: True})
    assert list(ways(plain)) == ["as-trained", "reestimated"]
    assert list(ways(silobn)) == ["averaged", "reestimated", "nearest"]
    assert same_numbers(ways(plain)["as-trained"], ways(silobn)["averaged"])
    assert ways(plain)["reestimated"] == ways(silobn)["reestimated"]
    assert (
        plain.summary["unseen"]["answered"] == [] and "unavailable" not in plain.summary["unseen"]
    )


@pytest.mark.parametrize("method", ["fedbn", "silobn"])
def test_the_twin_is_found_and_its_batch_norm_does_well(
    train: Train, unseen: dict[str, Any], method: str
) -> None:
    changes = {**unseen, "rounds": 8, "local_epochs": 5, "evaluate_every": 0, SHARES[method]: True}
    outcome = train(method=method, **changes)
    unseen_study = outcome.summary["unseen"]
    assert (
        unseen_study["domain"],
        unseen_study["inputs"],
        unseen_study["answered"],
        unseen_study["refused"],
    ) == (
        "twin",
        100,
        [0, 1, 2],
        [],
    )
    assert unseen_study["nearest"]["domain"] == "plain" and unseen_study["nearest"]["client"] == 2
    assert list(unseen_study["nearest"]["distances"]) == ["0", "1", "2"]
    expected = ["averaged", "reestimated", "reestimated-averaged-weights", "nearest"]
    assert list(ways(outcome)) == [
        way for way in expected if method == "fedbn" or "weights" not in way
    ]
    accuracy = {way: numbers["accuracy"] for way, numbers in ways(outcome).items()}
    # Which of the two is better depends on the processor's last bits.
    assert max(accuracy["nearest"], accuracy["reestimated"]) > accuracy["averaged"]
    assert outcome.records[-1]["unseen"] == unseen_study and "unseen" not in outcome.records[-2]


@pytest.mark.parametrize("method", ["fedbn", "creff+silobn"])
def test_training_knows_nothing_of_the_study(
    train: Train, scanners: Path, unseen: dict[str, Any], method: str
) -> None:
    """The last domain left out, shared or not, trains what the first three alone do, to the bit."""
    part = method.split("+")[-1]
    alone = train("alone", method=method, rounds=3, **dataset_of(scanners, "far", "dim", "plain"))
    for results, more in (("silent", {}), ("shared", {SHARES[part]: True}),
                          ("refused", {SHARES[part]: True, REFUSED[part]: "0,1,2"})):  # fmt: skip
        outcome = train(results, method=method, grid=(grid := TamperingGrid()), **unseen, **more)
        assert outcome.summary["hash"] == alone.summary["hash"]
        assert grid.kinds().count("query") == bool(more)
        for ours, theirs in zip(outcome.records, alone.records, strict=True):
            assert {key: value for key, value in ours.items() if key != "unseen"} == theirs
    if method != "fedbn":
        assert ways(outcome, "creff").keys() == ways(outcome).keys()


def test_nothing_leaves_a_site_without_the_setting(train: Train, unseen: dict[str, Any]) -> None:
    """No question is asked, and asked all the same, a client of that run gives no answer."""
    outcome = train(method="fedbn", grid=(grid := TamperingGrid()), **unseen)
    assert grid.kinds() == ["train", "evaluate"] * 3
    private = batch_norm_names(build("mlp-bn", (1, 8, 8), 10, 0))
    for message in grid.asked:
        for record in message.content.array_records.values():
            assert not private & unpack(record).keys()
    assert outcome.summary["unseen"]["unavailable"] == {
        "averaged": "share-norm-statistics is false", "nearest": "share-norm-statistics is false",
    }  # fmt: skip
    assert list(ways(outcome)) == ["reestimated"]
    assert (
        list(asked(small(outcome.folder.path.parent, method="fedbn", **unseen), {}).content) == []
    )


def asked(settings: Any, node_config: dict[str, Any], memory_round: int = 3) -> Message:
    """Return client 2's reply to the question, run by a node of this configuration."""
    task = ConfigRecord({"question": "norm-statistics", "assignment": settings.run_spec().to_json(),
                         "clients": [2], "memory": [memory_round],
                         "memory-digests": [""], "data-digests": [""]})  # fmt: skip
    shared = Checkpoint.load(RunFolder(settings.folder).checkpoint_file).shared
    with LocalGrid():
        content = RecordDict({"model": pack(shared), "task": task})
        message = Message(content, dst_node_id=1, message_type="query.clients")
        context = Context(
            run_id=1, node_id=1, node_config=node_config, state=RecordDict(), run_config={}
        )
        return client_app.app.app(message, context)


def test_a_node_refuses_by_its_own_configuration(train: Train, unseen: dict[str, Any]) -> None:
    changes = {"method": "fedbn", **unseen, SHARES["fedbn"]: True}
    outcome = train(**changes)
    settings = small(outcome.folder.path.parent, **changes)
    name = "2/upload/local-batch-norm"
    willing = asked(settings, {})
    assert unpack(willing.content.array_records[name]).keys() == batch_norm_names(
        build("mlp-bn", (1, 8, 8), 10, 0)
    )
    for stated in (False, "no", 0):
        refusing = asked(settings, {"share-norm-statistics": stated})
        assert unpack(refusing.content.array_records[name]).keys() == REFUSAL.keys(), stated
    assert asked(settings, {"share-norm-statistics": True}).content.keys() == willing.content.keys()


def test_a_refusal_is_counted_and_no_failure(train: Train, unseen: dict[str, Any]) -> None:
    method, shares = "silobn", {SHARES["silobn"]: True}
    every = train("every", method=method, **unseen, **shares)
    two = train("two", method=method, **unseen, **shares, **{REFUSED[method]: "2"})
    unseen_study = two.summary["unseen"]
    assert (unseen_study["answered"], unseen_study["refused"], two.summary["failures"]) == (
        [0, 1],
        [2],
        0,
    )
    assert unseen_study["nearest"]["client"] != 2
    assert unseen_study["bytes-up"] * 3 == every.summary["unseen"]["bytes-up"] * 2 > 0
    assert ways(two)["averaged"] != ways(every)["averaged"]
    nobody = train("nobody", method=method, **unseen, **shares, **{REFUSED[method]: "0, 1,2"})
    unseen_study = nobody.summary["unseen"]
    why = "every client asked refused"
    assert unseen_study["refused"] == [0, 1, 2] and unseen_study["unavailable"] == {
        "averaged": why,
        "nearest": why,
    }
    assert ways(nobody) == {"reestimated": ways(every)["reestimated"]}


SPOILED = {
    "shape": r"features.2.running_mean is float32 of 3, not float32 of 128",
    "negative": r"features.2.running_var is -\S+ and must be 0 to 1e\+10",
    "huge": r"features.2.running_mean is 1e\+30 and must be ",
    "nan": r"features.2.running_mean is not finite",
    "lost": "no reply",
}


@pytest.mark.parametrize("kind", SPOILED)
def test_a_wrong_answer_is_a_failure(train: Train, unseen: dict[str, Any], kind: str) -> None:
    def tamper(question: Message, records: RecordDict) -> None:
        name = "1/upload/local-statistics"
        if name not in records:
            return
        if kind == "lost":
            drop(records, 1)
            return
        state = unpack(records.array_records[name])
        mean, variance = state["features.2.running_mean"], state["features.2.running_var"]
        change = {"shape": {"features.2.running_mean": mean[:3]}, "negative": {"features.2.running_var": -variance},
                  "huge": {"features.2.running_mean": mean * 0 + 1e30},
                  "nan": {"features.2.running_mean": mean * float("nan")}}[kind]  # fmt: skip
        records[name] = pack({**state, **change})

    changes = {"method": "silobn", **unseen, "rounds": 1, SHARES["silobn"]: True}
    with pytest.raises(
        TooFewReplies, match=f"question norm-statistics: 2 good replies of 3.*{SPOILED[kind]}"
    ):
        train("strict", grid=TamperingGrid(tamper), **changes)
    lenient = train("lenient", grid=TamperingGrid(tamper), min_reply_share=0.6, **changes)
    assert lenient.summary["unseen"]["answered"] == [0, 2] and lenient.summary["failures"] == 1
    assert re.fullmatch(f"norm-statistics: {SPOILED[kind]}.*", lenient.records[-1]["failures"]["1"])


def test_who_never_trained_is_not_asked(train: Train, unseen: dict[str, Any]) -> None:
    changes = {
        "method": "fedbn",
        **unseen,
        "rounds": 1,
        "participation": 0.5,
        SHARES["fedbn"]: True,
    }
    outcome = train(**changes)
    assert (
        outcome.summary["unseen"]["answered"] == outcome.records[0]["clients"]
        and len(outcome.records[0]["clients"]) == 1
    )


def test_kill_and_resume(train: Train, tmp_path: Path, unseen: dict[str, Any]) -> None:
    changes = {"method": "fedbn", **unseen, SHARES["fedbn"]: True}
    whole = train("whole", **changes)
    for place in ("during the final question", "before the checkpoint", "after the checkpoint"):
        kill(tmp_path / place, place, changes)
        resumed = train(place, grid=(grid := TamperingGrid()), **changes)
        assert any("resuming after round" in line for line in resumed.lines), place
        assert grid.kinds() == (
            [] if place == "after the checkpoint" else ["train", "evaluate", "query"]
        ), place
        assert (resumed.hash, resumed.records) == (whole.hash, whole.records), place
        assert resumed.summary["unseen"] == whole.summary["unseen"], place


def test_faithful_messages_and_workers_give_the_same(train: Train, unseen: dict[str, Any]) -> None:
    changes = {"method": "fedbn", **unseen, SHARES["fedbn"]: True, REFUSED["fedbn"]: "0"}
    handed = train("handed", **changes)
    for results, grid in (("faithful", LocalGrid(faithful=True)), ("workers", WorkersGrid(2))):
        other = train(results, grid=grid, **changes)
        assert (other.hash, other.records) == (handed.hash, handed.records)


def test_a_model_without_batch_norm_is_measured_as_it_was_trained(
    train: Train, unseen: dict[str, Any]
) -> None:
    outcome = train(model="small-cnn", **unseen)
    assert list(ways(outcome)) == ["as-trained"]


@pytest.mark.parametrize("stated", ["even", "odd"])
def test_the_site_is_measured_on_the_positive_class_of_the_run(
    train: Train, tmp_path: Path, scanners: Path, stated: str
) -> None:
    for name in ("dim", "plain", "twin"):
        arrays = dict(np.load(scanners / f"{name}.npz"))
        for part in ("train_labels", "test_labels"):
            arrays[part] %= 2
        np.savez(tmp_path / f"{name}.npz", **arrays)
    data = {**dataset_of(tmp_path, "dim", "plain", "twin"), "classes": "even,odd"}
    outcome = train(**data, unseen_domain="twin", positive_class=stated, rounds=1, local_epochs=1)
    label = ("even", "odd").index(stated)
    for numbers in ways(outcome).values():
        assert numbers["positive-class"] == stated
        for key in OF_POSITIVE:
            assert numbers[key] == numbers[f"{key}-by-class"][label], key


def test_the_table_names_site_way_and_refusal(train: Train, unseen: dict[str, Any]) -> None:
    changes = {"method": "fedbn", **unseen, SHARES["fedbn"]: True}
    outcomes = [
        train("shared", **changes),
        train("none", **changes, **{REFUSED["fedbn"]: "0,1,2"}, seed=1),
    ]
    planned = [
        small(outcome.folder.path.parent, **changes, seed=seed)
        for seed, outcome in enumerate(outcomes)
    ]
    table = unseen_table(
        planned, {p.run_id: o.summary for p, o in zip(planned, outcomes, strict=True)}
    )
    cells = [list(column.cells) for column in table.columns]
    assert set(cells[0]) == {"twin"} and set(cells[1]) == {"fedbn"} and set(cells[2]) == {"0", "1"}
    assert cells[3] == [
        "averaged", "reestimated", "reestimated-averaged-weights", "nearest (plain)", "reestimated",
        "averaged: every client asked refused", "nearest: every client asked refused",
    ]  # fmt: skip
    assert (
        cells[4][0] == f"{100 * ways(outcomes[0])['averaged']['balanced-accuracy']:.1f}"
        and cells[4][-1] == "-"
    )
