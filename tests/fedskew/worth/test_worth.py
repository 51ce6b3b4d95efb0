"""The worth of sites: heads of coalitions against heads of pooled data, on digits."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import FedSkew

from data import SettingError
from fedskew.worth.coalitions import Coalitions, from_answer, total
from fedskew.worth.federation import (
    STATISTICS,
    SimulatedSites,
    judges_of,
    settings_of,
    weighted_up,
    worth_of,
)
from fedskew.worth.shapley import exact
from strategies.fed3r import Fed3R

DIGITS = {"dataset": "digits", "model": "linear", "partition": "lda", "alpha": 0.3, "clients": 4}


@pytest.fixture(scope="module")
def sites() -> SimulatedSites:
    return SimulatedSites(settings_of("fed3r", {}, DIGITS))


@pytest.fixture(scope="module")
def coalitions(sites: SimulatedSites) -> Coalitions:
    return sites.coalitions().with_rho_of_all()


def test_values_equal_those_of_heads_of_pooled_samples(
    sites: SimulatedSites, coalitions: Coalitions
) -> None:
    """Every coalition's samples are put together and their statistics taken anew, as one client's."""
    client_of = sites.runtime.client
    state = sites.runtime.model.state_dict()
    clients = [client_of(number, 0, state, {}, {}) for number in range(4)]
    table = {}
    for size in range(5):
        for members in itertools.combinations(range(4), size):
            if not members:
                table[frozenset[int]()] = np.ones(len(coalitions.labels_T), np.int64)
                continue
            parts = [clients[member].samples for member in members]
            inputs = [part.inputs_N for part in parts]
            assert all(isinstance(part, torch.Tensor) for part in inputs)
            pooled = replace(
                clients[0],
                samples=replace(
                    parts[0],
                    inputs_N=torch.cat(inputs),  # type: ignore[arg-type]
                    labels_N=torch.cat([part.labels_N for part in parts]),
                ),
            )
            statistics = from_answer(sites.variant.answer(pooled, sites.variant.name))
            table[frozenset(members)] = coalitions.hits([coalitions.head(statistics)])[0]
    brute_force = exact(4, lambda wanted: [table[coalition] for coalition in wanted])
    ours = exact(4, coalitions.outcomes)
    assert (ours.scaled_KT == brute_force.scaled_KT).all() and ours.scaled_KT.any()


def test_any_order_of_joining_gives_the_same_sums(coalitions: Coalitions) -> None:
    direct = total([coalitions.sites[site] for site in (3, 0, 2)])
    for order in ([{0}, {0, 3}, {0, 2, 3}], [{0, 1, 2, 3}, {2, 3}, {0, 2, 3}]):
        for coalition in order:
            found = coalitions.sum_of(frozenset(coalition))
        assert torch.equal(found.products_DD, direct.products_DD)
        assert torch.equal(found.sums_CD, direct.sums_CD)


def test_a_site_without_samples_has_no_value_and_equal_sites_have_the_same(
    coalitions: Coalitions,
) -> None:
    first, second, *_ = coalitions.sites
    doubled = replace(coalitions, sites=[first, second, first, 0 * first])
    values = exact(4, doubled.outcomes).scaled_KT
    assert (values[0] == values[2]).all() and values[0].any()
    assert not values[3].any()


def test_all_principal_components_change_no_prediction_and_few_cost_little(
    coalitions: Coalitions,
) -> None:
    everybody = [frozenset(range(4))]
    whole = coalitions.outcomes(everybody)[0]
    assert coalitions.compressed(64) is coalitions
    nearly = coalitions.compressed(60)  # some pixels are 0 in all images
    assert nearly.features_TD.shape[1] == 60
    assert (nearly.outcomes(everybody)[0] != whole).mean() < 0.02
    few = coalitions.compressed(2).outcomes(everybody)[0]
    assert few.mean() < whole.mean()


@pytest.mark.parametrize("head", STATISTICS)
def test_shapley_values_sum_to_what_all_sites_gain_over_a_guess(head: str) -> None:
    worth = worth_of(settings_of(head, {}, DIGITS), "balanced-accuracy")
    assert worth.guess == 0.1 and worth.orders == 0 and worth.everybody.value > 0.7
    gained = worth.everybody.value - worth.guess
    assert sum(site.shapley.value for site in worth.sites) == pytest.approx(gained, abs=1e-12)
    assert sum(site.samples for site in worth.sites) == sum(
        int(part.sum())
        for part in SimulatedSites(settings_of(head, {}, DIGITS)).federation.counts_KC
    )
    for site in worth.sites:
        gain = site.together.value - site.alone.value
        assert site.gain.value == pytest.approx(gain, abs=1e-12)


def test_more_sites_than_all_coalitions_allow_are_sampled() -> None:
    stated = {**DIGITS, "clients": 14}
    worth = worth_of(settings_of("fedncm", {}, stated), "accuracy", pairs=5)
    assert worth.orders == 10 and len(worth.sites) == 14
    gained = worth.everybody.value - worth.guess
    assert sum(site.shapley.value for site in worth.sites) == pytest.approx(gained, abs=1e-12)
    with pytest.raises(SettingError, match="at most 12 with --exact"):
        worth_of(settings_of("fedncm", {}, stated), "accuracy", all_features=True)


def test_a_sites_own_samples_can_weigh_as_much_as_all_others(coalitions: Coalitions) -> None:
    own, everybody = coalitions.sites[0], coalitions.everybody
    others = everybody - own
    mixed = weighted_up(own, everybody)
    own_part = mixed.samples - others.samples
    assert own_part % own.samples == 0
    assert abs(own_part - others.samples) <= own.samples / 2
    nothing = 0 * own
    assert weighted_up(nothing, others).samples == others.samples


def test_balanced_accuracy_weighs_classes_alike_and_accuracy_samples(sites: SimulatedSites) -> None:
    test = sites.federation.test(None)
    chosen = test.only(torch.arange(25))
    labels_T = chosen.labels_N.numpy()
    balanced = judges_of(chosen, 10, "balanced-accuracy").weights_T
    for label in np.unique(labels_T):
        share = balanced[labels_T == label].sum()
        assert share == pytest.approx(1 / len(np.unique(labels_T)))
    assert judges_of(chosen, 10, "accuracy").weights_T == pytest.approx(np.full(25, 1 / 25))


def test_samples_of_one_subject_are_one_draw(sites: SimulatedSites) -> None:
    test = sites.federation.test(None).only(torch.arange(6))
    of_subjects = replace(test, subjects_N=torch.tensor([7, 7, 3, 3, 3, 9]))
    assert judges_of(of_subjects, 10, "accuracy").subjects_T.tolist() == [1, 1, 0, 0, 0, 2]
    assert judges_of(test, 10, "accuracy").subjects_T.tolist() == list(range(6))


class TestCommand:
    def test_prints_a_row_for_each_site(self, fedskew: FedSkew) -> None:
        words = [f"--set={key}={value}" for key, value in DIGITS.items()]
        status, output, _ = fedskew("worth", *words)
        assert status == 0 and "from all 16 coalitions, on all features" in output
        status, output, _ = fedskew("worth", *words, "--json")
        content = json.loads(output)
        assert [site["site"] for site in content["sites"]] == ["0", "1", "2", "3"]
        assert content["sites"][0]["shapley"]["low"] < content["sites"][0]["shapley"]["value"]

    def test_takes_data_and_model_from_a_run(self, fedskew: FedSkew, tmp_path: Path) -> None:
        words = [f"--set={key}={value}" for key, value in DIGITS.items()]
        stated = fedskew("worth", *words, "--json")[1]
        status, _, error = fedskew(
            "run", "--method=fedavg", *words, "--set=rounds=1", "--results", tmp_path
        )
        assert status == 0, error
        (run,) = [folder for folder in tmp_path.iterdir() if (folder / "settings.json").exists()]
        assert fedskew("worth", run, "--json")[1] == stated
        assert fedskew("worth", run.name, "--results", tmp_path, "--json")[1] == stated

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (("--set", "dataset=digits"), "needs features that stay as they are"),
            (("--set", "learning-rate=0.1"), "learning-rate = 0.1: has no effect on the worth"),
            (("--set", "model=linear", "--set", "clients=1"), "clients = 1: must be at least 2"),
            (("--head", "fed-lda"), "--head = 'fed-lda': must be one of fed3r"),
            (("--target", "auroc"), "--target = 'auroc': must be one of"),
            (("--permutations", "7"), "--permutations = 7: must be even"),
            (("no-run",), "no-run: is no run's folder"),
        ],
    )
    def test_refuses_in_a_sentence(
        self, fedskew: FedSkew, words: tuple[str, ...], sentence: str
    ) -> None:
        status, _, error = fedskew("worth", *words)
        assert status == 2 and sentence in error


def test_rho_is_chosen_once_from_all_sites(coalitions: Coalitions) -> None:
    method = coalitions.method
    assert isinstance(method, Fed3R) and float(method.rho) > 0
    stated = SimulatedSites(settings_of("fed3r", {}, {**DIGITS, "fed3r.rho": "0.5"}))
    assert stated.coalitions().with_rho_of_all().method == Fed3R(rho="0.5")
