"""sites:FILE: what the agreement says is the run's; what needs samples, places or modules at the server is refused."""

from pathlib import Path
from typing import Any

import pytest

from data import DataError, SettingError, federate
from fedskew.engines.local import LocalGrid
from server_app.app import Run
from server_app.run_folder import RunFolder
from server_app.settings import parse
from server_app.strategy import federation_of
from strategies.core.exchange import report_late
from tests.site_files import agreed, write


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "federation.toml", agreed())


def stated(file: Path, **changes: Any) -> dict[str, Any]:
    return {
        "method": "fedavg",
        "dataset": f"sites:{file}",
        **{k.replace("_", "-"): v for k, v in changes.items()},
    }


def test_the_agreement_is_part_of_the_runs_id_wherever_its_file_lies(
    file: Path, tmp_path: Path
) -> None:
    settings = parse(stated(file))
    assert settings.data.clients == 3 and settings.data.classes == "healthy,ill,other"
    assert settings.run_id.startswith("sites-chest-fedavg-seed0-")
    assert parse(settings.flat()).run_id == settings.run_id
    elsewhere = write(tmp_path / "b/agreed.toml", agreed())
    assert parse(stated(elsewhere)).run_id == settings.run_id
    assert parse(stated(write(elsewhere, agreed(min_sites=3)))).run_id != settings.run_id


def test_the_server_sees_sites_and_no_sample(file: Path) -> None:
    settings = parse(stated(file))
    federation = federate(settings.data, 0)
    assert (
        federation.client_names == ["0 north", "1 east", "2 south"]
        and federation.hash == settings.agreement.sha256
    )
    assert (
        not federation.counts_KC.any()
        and not len(federation.test())
        and federation.holdout() is None
    )


def test_a_run_notes_in_its_folder_for_which_sites_it_waits(file: Path, tmp_path: Path) -> None:
    """There `fedskew federation run` finds it."""
    settings = parse(stated(file, results=str(tmp_path / "results"), device="cpu"))
    settings.folder.mkdir(parents=True)
    folder = RunFolder(settings.folder)
    run = Run(LocalGrid(), settings, federation_of(settings), folder, lambda line: None)
    assert not folder.waiting_file.exists()
    report_late(run.strategy.assigner, {7: [1]}, 3600.0, [7], 60.0)
    assert folder.waiting_file.read_text().startswith("waiting for site east since 60 s; ")
    run.strategy.assigner.report_line("")
    assert not folder.waiting_file.exists()


def test_no_message_names_a_place(file: Path, tmp_path: Path) -> None:
    settings = parse(stated(file, results=str(tmp_path / "results")))
    message = settings.run_spec().to_json()
    assert str(tmp_path) not in message and "/" not in message.replace("sites:", "")
    assert settings.agreement.sha256 in message


def test_an_agreement_that_is_changed_under_a_run_is_refused(file: Path) -> None:
    settings = parse(stated(file)).flat()
    write(file, agreed(min_sites=3))
    with pytest.raises(DataError):
        parse(settings)


@pytest.mark.parametrize(
    "changes",
    [
        {"data_root": "/data"},
        {"download": True},
        {"partition_file": "p.json"},
        {"holdout_per_class": 3},
        {"partition": "iid"},
        {"train_images": 100},
        {"clients": 5},
        {"classes": "ill,healthy,other"},
        {"input_shape": "1x28x28"},
        {"model": "my.models:net"},
        {"participation": 0.5},
        *({"method": name} for name in ("feddf", "real-features")),
    ],
)
def test_what_is_a_sites_own_affair_or_needs_samples_here_is_refused(
    file: Path, changes: dict[str, Any]
) -> None:
    with pytest.raises(SettingError) as error:
        parse(stated(file, **changes))
    assert error.value.key == next(iter(changes)).replace("_", "-")
    assert parse(stated(file, clients=3, classes="healthy,ill,other", input_shape="1x8x8"))
