"""What a site's reply says of an error depends on the error's class, not on the class's name."""

from types import SimpleNamespace
from typing import Any

import pytest

from client_app import handlers
from client_app.handlers import failure_kind
from client_app.local_site import DataChanged, NotAgreed, NotAllowed
from client_app.memory import MemoryLost
from client_app.tensor_files import Damaged
from data import DataError, SettingError


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (DataError("patients.csv: line 7"), "data"),
        (type("Nearer", (DataError,), {})("patients.csv"), "data"),
        (SettingError("alpha", "-1", "must be more than 0"), "setting"),
        (MemoryLost("gone"), "memory"),
        (Damaged("cut short"), "memory"),
        (DataChanged("other data"), "data changed"),
        (FloatingPointError("nan"), "not finite"),
        (NotAgreed("another data set"), "agreement"),
        (NotAllowed("class-counts"), "policy"),
        (OSError("/home/somebody"), "failure"),
    ],
)
def test_a_site_reports_the_kind_of_its_error(error: Exception, kind: str) -> None:
    assert failure_kind(error) == kind


def test_an_error_of_another_package_with_the_same_name_is_a_plain_failure() -> None:
    namesake = type("DataError", (Exception,), {})
    assert failure_kind(namesake("of a database")) == "failure"


@pytest.mark.parametrize(
    ("clients", "per_pass", "obstacle", "stacked"),
    [
        (2, 4, "", True),
        (2, 4, "dropout draws one number for all", False),
        (2, 1, "", False),
        (1, 4, "", False),
    ],
)
def test_clients_are_stacked_only_where_several_can_be(
    clients: int, per_pass: int, obstacle: str, stacked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[list[int]] = []

    def train(members: list[SimpleNamespace]) -> Any:
        trained.append([member.id for member in members])
        yield from ((member, f"report of {member.id}", 0.5) for member in members)

    runtime = SimpleNamespace(
        run_spec=SimpleNamespace(training=SimpleNamespace(clients_per_pass=per_pass)),
        vectorized=SimpleNamespace(obstacle=obstacle, train=train),
    )
    monkeypatch.setattr(handlers, "runtime_of", lambda *of: runtime)

    def begin(runtime: object, number: int, expected: object) -> SimpleNamespace:
        if number == 1:
            raise OSError("its memory is lost")
        return SimpleNamespace(id=number)

    request: Any = SimpleNamespace(run_spec="")
    asked: Any = dict.fromkeys(range(clients))
    reports = handlers.train_in_passes(request, asked, begin)  # type: ignore[arg-type]
    assert trained == [[0]] * stacked
    if stacked:
        error, seconds = reports.pop(1)
        assert isinstance(error, OSError) and seconds == 0.0
        assert reports == {0: ("report of 0", 0.5)}
    else:
        assert reports == {}
