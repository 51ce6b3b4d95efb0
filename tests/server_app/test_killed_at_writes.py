"""A kill at any write of a run, of its clients too: resumed, it leaves the files of a run that was not killed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from in_process import FinishedRun, contents_of, experiment

import client_app.tensor_files
from server_app.run_folder import RunFolder

SHORT: dict[str, Any] = {
    "clients": 3, "participation": 0.7, "train_images": 100, "test_images": 50, "local_epochs": 1,
}  # fmt: skip
EVERY_SECOND = {"method": "scaffold+silobn", "rounds": 5, "evaluate_every": 2}


class Killed(BaseException):
    """The process is dead: nothing in it writes from here on."""


@contextmanager
def killed_at(number: int) -> Iterator[list[str]]:
    """Within this context every write, rename and deletion from the given one on fails; count them in a list."""
    made: list[str] = []
    with pytest.MonkeyPatch.context() as patch:

        def dying(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
            def write(*arguments: Any, **options: Any) -> Any:
                made.append(name)
                if len(made) >= number:
                    raise Killed(name)
                return original(*arguments, **options)

            return write

        for owner, name in (
            (Path, "replace"),
            (Path, "unlink"),
            (client_app.tensor_files, "save_file"),
            (RunFolder, "add_round"),
        ):
            patch.setattr(owner, name, dying(name, getattr(owner, name)))
        yield made


def killed_everywhere(tmp_path: Path, changes: dict[str, Any], step: int) -> FinishedRun:
    """Kill a run at every `step`-th of its writes and resume it: it must leave the files of a run that was not."""
    # The names of the results folders enter the files: all have the same one.
    whole = experiment(tmp_path / "whole" / "results", **changes)
    expected = contents_of(whole.folder)
    with killed_at(10**6) as made:
        experiment(tmp_path / "counted" / "results", **changes)
    assert made.count("add_round") == len(whole.records)
    for number in range(1, len(made) + 1, step):
        results = tmp_path / f"killed-{number}" / "results"
        with killed_at(number), pytest.raises(Killed):
            experiment(results, **changes)
        resumed = experiment(results, **changes)
        assert contents_of(resumed.folder) == expected, f"{number} {made[number - 1]}"
    return whole


def test_killed_at_writes(tmp_path: Path) -> None:
    killed_everywhere(tmp_path, {**SHORT, "method": "fedbn", "rounds": 3}, step=13)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["creff+fedbn", "scaffold+silobn"])
def test_killed_at_every_write(tmp_path: Path, method: str) -> None:
    changes = {**SHORT, **EVERY_SECOND, "method": method}
    killed_everywhere(tmp_path, changes, step=1)
