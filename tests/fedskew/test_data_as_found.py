"""Data as users bring them: `data check` takes or refuses each, and the command that it ends with works."""

import re
import shlex

import pytest
from data_as_found import CASES

from data import federate, load
from server_app.settings import parse, parse_text


def check(fedskew, case, folder):
    """Return how `data check` ends, once what its refusals name is stated."""
    if case.module:
        pytest.importorskip(case.module)
    path = case.build(folder)
    stated = []
    for setting in case.settles:
        status, _, errors = fedskew("data", "check", path, *stated)
        assert (status, errors.count("\n")) == (2, 1) and "Traceback" not in errors
        named = next(
            word for word in re.findall(r"--set '?([^\s']+)", errors) if word.startswith(setting)
        )
        stated += ["--set", named.rstrip(",.:")]
    return fedskew("data", "check", path, *stated)


def last_command(output):
    """Return the words after `fedskew` of the output's last line."""
    words = shlex.split(output.rstrip("\n").rpartition("\n")[2])
    assert words[:2] == ["fedskew", "run"]
    return words[1:]


@pytest.mark.parametrize("name", CASES)
def test_the_answer(tmp_path, fedskew, name):
    """Of what is taken, the last line's settings load the data and deal them out; a refusal is one line."""
    case = CASES[name]
    status, output, errors = check(fedskew, case, tmp_path)
    if case.refused:
        assert (status, errors.count("\n")) == (2, 1), errors
        assert all(line.startswith("fedskew data check ") for line in output.splitlines())
        assert case.refused in errors and str(tmp_path) in errors
        return
    assert status == 0, errors
    assert not [words for words in case.notes if words not in output]
    stated = dict(parse_text(word) for word in last_command(output) if "=" in word)
    settings = parse({**stated, "cache": str(tmp_path / "cache")})
    data = load(settings.data)
    assert len(data.train_labels) and len(data.test_labels)
    assert federate(settings.data, 0).counts_KC.sum() == len(data.train_labels)
