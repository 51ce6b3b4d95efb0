"""A site's policy, rule by rule: each is held by what it is about, and by nothing else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from client_app.client import Report, Trained
from client_app.local_site import PERMISSIONS, NotAllowed
from client_app.state import State
from data.agreement import read_agreement
from site_agent.config import Site
from site_agent.policy import BY_CLASS, Policy
from tests.site_files import agreed, write


def policy_of(folder: Path, counts_C: list[int], tested: int = 12, **site: Any) -> Policy:
    """Return the policy of a site of so many training samples of each class."""
    agreement = read_agreement(write(folder / "federation.toml", agreed()))
    place = Site("north", 0, agreement, "npz:data.npz", folder / "state", **site)
    return Policy(place, (), torch.tensor(counts_C), tested)


def report_of(shared: State) -> Report:
    return Report(24, 1.0, Trained(1, 1.0, 0.1, shared), shared)


def test_max_norm_is_of_the_update_and_not_of_the_model(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, [8, 8, 8], max_norm=1.0)
    large, small = {"w": torch.full((100,), 50.0)}, {"w": torch.full((100,), 0.01)}
    policy.check_update(large, report_of({"w": large["w"] + 0.09}))
    policy.check_update(large, report_of(large))
    for start in (large, small):
        with pytest.raises(NotAllowed, match=r"the update's norm is 1\.1\d*, and max-norm = 1"):
            policy.check_update(start, report_of({"w": start["w"] + 0.11}))


def test_a_methods_numbers_need_the_permission_for_scores(tmp_path: Path) -> None:
    shared = {"w": torch.zeros(3)}
    without = replace(report_of(shared), numbers={})
    with_numbers = replace(report_of(shared), numbers={"learned-temperature/temperature": 1.0})
    policy = policy_of(tmp_path, [8, 8, 8], allow=("model",))
    policy.check_update(shared, without)
    with pytest.raises(NotAllowed) as refused:
        policy.check_update(shared, with_numbers)
    assert refused.value.permission == "scores"
    policy_of(tmp_path, [8, 8, 8], allow=("model", "scores")).check_update(shared, with_numbers)


def test_sums_of_columns_are_of_as_many_rows_as_an_update(tmp_path: Path) -> None:
    policy_of(tmp_path, [4, 0, 4], min_update_samples=8).check_counts("column-sums")
    with pytest.raises(NotAllowed, match="of 7 training rows, and min-update-samples = 8") as kept:
        policy_of(tmp_path, [4, 0, 3], min_update_samples=8).check_counts("column-sums")
    assert kept.value.permission == "column-sums"


@pytest.mark.parametrize("permission", BY_CLASS)
def test_a_class_that_the_site_lacks_is_not_one_of_too_few_samples(
    tmp_path: Path, permission: str
) -> None:
    policy_of(tmp_path, [10, 0, 5], min_class_samples=5).check_counts(permission)
    policy_of(tmp_path, [0, 0, 0], min_class_samples=1).check_counts("model")
    with pytest.raises(NotAllowed, match="a class has 4 samples, and min-class-samples = 5"):
        policy_of(tmp_path, [10, 0, 4], min_class_samples=5).check_counts(permission)


@pytest.mark.parametrize("permission", PERMISSIONS)
def test_what_tells_of_classes_is_held_by_min_class_samples(
    tmp_path: Path, permission: str
) -> None:
    policy = policy_of(tmp_path, [10, 4, 10], min_class_samples=5)
    by_class = {"class-counts", "class-statistics", "class-predictions", "head-gradients"}
    if permission not in by_class:
        policy.check_counts(permission)
        return
    with pytest.raises(NotAllowed) as kept:
        policy.check_counts(permission)
    assert kept.value.permission == permission


@pytest.mark.parametrize("name", ["unknown", *PERMISSIONS])
def test_an_upload_of_no_method_of_the_run_is_refused_whatever_its_name(
    tmp_path: Path, name: str
) -> None:
    policy = policy_of(tmp_path, [10, 10, 10], allow=PERMISSIONS)
    policy.check_uploads({})
    with pytest.raises(NotAllowed) as refused:
        policy.check_uploads({name: {}})
    assert refused.value.permission == name
