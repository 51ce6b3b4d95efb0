"""Old names of settings, options and commands: they work for one release, say so, and change nothing that is stored."""

import json
from pathlib import Path
from typing import Any

import pytest

from client_app.run_spec import RunSpec
from data import SettingError
from data.renamed_settings import NEW_NAMES, OLD_NAMES, given_to_flower, print_renamed
from fedskew.cli.completion import settings as completed_settings
from fedskew.experiments.experiments import load_experiments
from fedskew.export.model_card import shown_settings
from server_app.settings import as_toml, defaults, parse, parse_texts
from tests.command_line import FedSkew

VALUES: dict[str, Any] = {
    "tested-on": "validation",
    "clients-together": 4,
    "fedavg.weights-over": "all",
    "fresh": True,
    "min-replies": 0.5,
}
"""A value of each renamed setting that is not its default."""
IDS = {
    "tested-on": ({"validation-fraction": 0.2}, "digits-fedshift-seed0-0af2cc7292"),
    "clients-together": ({}, "digits-fedshift-seed0-41a9dbb92b"),
    "fedavg.weights-over": ({"method": "fedavg"}, "digits-fedavg-seed0-442807d2b2"),
    "fresh": ({}, "digits-fedshift-seed0-3dc1a6a8fb"),
    "min-replies": ({}, "digits-fedshift-seed0-3dc1a6a8fb"),
}
"""By old name: other settings, and the run's id as it was before the setting was renamed."""


@pytest.fixture(autouse=True)
def not_printed_yet() -> None:
    print_renamed.cache_clear()


def test_every_renamed_setting_is_tried_here() -> None:
    assert VALUES.keys() == IDS.keys() == NEW_NAMES.keys()


@pytest.mark.parametrize("old", VALUES)
def test_both_names_give_the_same_run_with_the_id_it_always_had(old: str) -> None:
    others, run_id = IDS[old]
    before = parse({**others, old: VALUES[old]})
    now = parse({**others, NEW_NAMES[old]: VALUES[old]})
    assert before == now
    assert now.run_id == run_id


@pytest.mark.parametrize("old", VALUES)
def test_the_old_name_prints_one_line_on_a_command_line(
    old: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = str(VALUES[old]).lower()
    new = NEW_NAMES[old]
    assert parse_texts([f"{new}={text}"]) == {new: VALUES[old]}
    assert capsys.readouterr().err == ""
    assert parse_texts([f"{old}={text}"]) == {new: VALUES[old]}
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"setting {old} is called {new} now" in error


@pytest.mark.parametrize("old", VALUES)
def test_both_names_at_once_are_refused(old: str) -> None:
    new = NEW_NAMES[old]
    with pytest.raises(SettingError) as caught:
        parse_texts([f"{new}={VALUES[old]}", f"{old}={VALUES[old]}"])
    assert caught.value.key == new and caught.value.value == VALUES[old]
    assert old in caught.value.rule
    with pytest.raises(SettingError):
        parse({new: VALUES[old], old: VALUES[old]})


@pytest.mark.parametrize("old", VALUES)
def test_flower_takes_both_names(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    new = NEW_NAMES[old]
    unchanged = {**defaults(), **{name: defaults()[OLD] for OLD, name in OLD_NAMES.items()}}
    assert (
        f"{new.rpartition('.')[2]} = " in as_toml() and f"{old.rpartition('.')[2]} = " in as_toml()
    )
    assert given_to_flower({**unchanged, new: VALUES[old]}, defaults())[new] == VALUES[old]
    assert capsys.readouterr().err == ""
    assert given_to_flower({**unchanged, old: VALUES[old]}, defaults())[new] == VALUES[old]
    assert f"setting {old} is called" in capsys.readouterr().err
    with pytest.raises(SettingError, match=old):
        given_to_flower({**unchanged, new: VALUES[old], old: VALUES[old]}, defaults())


def test_run_specs_keep_the_old_names() -> None:
    spec = parse({"evaluate-on": "validation", "validation-fraction": 0.2}).run_spec()
    fields = json.loads(spec.to_json())
    assert fields["data"]["tested_on"] == "validation"
    assert fields["training"]["clients_together"] == 1
    assert RunSpec.from_json(spec.to_json()) == spec


def test_a_model_card_shows_the_new_names() -> None:
    settings = {"dataset": "digits", "fresh": True, "clients-together": 4}
    shown = shown_settings({"settings": settings})
    assert shown["clients-per-pass"] == 4
    assert not {"fresh", "overwrite", "clients-together"} & shown.keys()


def test_an_experiment_may_still_use_an_old_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file.yaml"
    file.write_text("one: {title: a, methods: [fedavg], settings: {clients-together: 4}}")
    assert load_experiments(file)["one"].settings == {"clients-per-pass": 4}
    assert "clients-together is called clients-per-pass" in capsys.readouterr().err
    both = "{clients-together: 4, clients-per-pass: 2}"
    file.write_text(f"one: {{title: a, methods: [fedavg], settings: {both}}}")
    with pytest.raises(
        SettingError, match=r"^file.yaml: one: clients-per-pass = 2: .*clients-together = 4"
    ):
        load_experiments(file)


def test_a_shell_completes_the_new_names_alone() -> None:
    assert completed_settings("clients-") == ["clients-per-pass="]


def test_the_option_fresh_still_works(tmp_path: Path, fedskew: FedSkew) -> None:
    words = ("run", "--results", tmp_path, "--set", "rounds=1", "--set", "train-images=100",
             "--set", "partition=iid", "--set", "clients=2", "--engine", "inprocess")  # fmt: skip
    assert fedskew(*words)[0] == 0
    status, output, error = fedskew(*words, "--fresh")
    assert status == 0 and "finished earlier" not in output
    assert error.count("--fresh is called --overwrite now") == 1
    status, _, error = fedskew(*words, "--fresh", "--overwrite")
    assert status == 2 and "--fresh is given as well" in error
    settings = json.loads(next(tmp_path.glob("*/settings.json")).read_text())["settings"]
    assert OLD_NAMES.values() - settings.keys() == set()
    assert OLD_NAMES.keys() & settings.keys() == set()


def test_the_option_like_still_works(tmp_path: Path, fedskew: FedSkew) -> None:
    words = ("select", "--minutes", 1, "--results", tmp_path)
    missing = tmp_path / "no.csv"
    status, _, error = fedskew(*words, "--like", missing)
    assert status == 2 and "--like is called --match-counts now" in error and "no.csv" in error
    status, _, error = fedskew(*words, "--like", missing, "--match-counts", missing)
    assert status == 2 and "--match-counts = " in error and "--like = " in error


def test_the_command_data_split_still_works(tmp_path: Path, fedskew: FedSkew) -> None:
    status, output, error = fedskew("data", "split", "digits", tmp_path / "sites", "--sites", 2)
    assert status == 0 and "federation.toml" in output
    assert "data split is called data export-sites now" in error
    assert "split" not in fedskew("data", "--help")[1]


@pytest.mark.parametrize(
    ("command", "new", "old"),
    [("run", "--overwrite", "--fresh"), ("select", "--match-counts", "--like")],
)
def test_help_shows_the_new_option_alone(
    command: str, new: str, old: str, fedskew: FedSkew
) -> None:
    status, output, _ = fedskew(command, "--help")
    assert status == 0 and new in output and old not in output


def test_the_list_of_settings_shows_the_new_names_alone(fedskew: FedSkew) -> None:
    listed = {row["key"] for row in json.loads(fedskew("list", "settings", "--json")[1])}
    assert OLD_NAMES.keys() <= listed and not NEW_NAMES.keys() & listed
