"""A site nobody trained with is measured with the batch norm that willing clients share; training stays as it is."""

from collections.abc import Callable
from typing import Any

from in_process import FinishedRun, TamperingGrid, small

from fedskew.cli.results_table import unseen_table

SCANNERS: dict[str, Any] = {
    "method": "fedbn",
    "dataset": "digits-scanners",
    "unseen_domain": "digits-noisy",
    "clients": 0,
    "train_images": 0,
    "test_images": 50,
    "alpha": 0.1,
    "min_samples": 10,
    "rounds": 1,
    "local_epochs": 1,
}


def test_the_unseen_site_is_measured_and_who_refuses_is_named(
    train: Callable[..., FinishedRun],
) -> None:
    shares = {"local_batch_norm__share_norm_statistics": True}
    silent = train(grid=(grid := TamperingGrid()), **SCANNERS)
    assert grid.kinds() == ["train", "evaluate"], "nothing leaves a site without the setting"
    refusing = {**shares, "local_batch_norm__refused_by": "0"}
    shared = train("shared", grid=(grid := TamperingGrid()), **SCANNERS, **refusing)
    assert grid.kinds() == ["train", "evaluate", "query"]
    assert shared.summary["hash"] == silent.summary["hash"]
    study, everybody = shared.summary["unseen"], shared.records[0]["clients"]
    assert study["domain"] == "digits-noisy" and shared.records[-1]["unseen"] == study
    assert (study["answered"], study["refused"]) == (everybody[1:], [0])
    ways = ["averaged", "reestimated", "reestimated-averaged-weights", "nearest"]
    assert list(study["models"]["average"]) == ways
    assert list(silent.summary["unseen"]["models"]["average"]) == ["reestimated"]
    planned = [small(shared.folder.path.parent, **SCANNERS, **refusing)]
    table = unseen_table(planned, {planned[0].run_id: shared.summary})
    assert list(table.columns[0].cells) == ["digits-noisy"] * 4
