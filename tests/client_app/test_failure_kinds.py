"""What a site's reply says of an error depends on the error's class, not on the class's name."""

import pytest

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
