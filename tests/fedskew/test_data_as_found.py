"""Data as users bring them: `data check` takes or refuses each, and the command that it ends with works."""

import re
import shlex

import pytest
from data_as_found import CASES

from data import federate, load
from server_app.settings import parse, parse_text


@pytest.mark.parametrize("name", CASES)
def test_the_answer(tmp_path, fedskew, name):
    """Once what refusals name is stated, the last line's settings load the data and deal them out."""
    case = CASES[name]
    if case.module:
        pytest.importorskip(case.module)
    path = case.build(tmp_path)
    settled = []
    for setting in case.settles:
        status, _, errors = fedskew("data", "check", path, *settled)
        assert (status, errors.count("\n")) == (2, 1) and "Traceback" not in errors
        (named, *_) = re.findall(rf"--set '?({setting}[^\s']*)", errors)
        settled += ["--set", named.rstrip(",.:")]
    status, output, errors = fedskew("data", "check", path, *settled)
    assert status == 0, errors
    assert not [words for words in case.notes if words not in output]
    command = shlex.split(output.splitlines()[-1])
    assert command[:2] == ["fedskew", "run"]
    stated = dict(parse_text(word) for word in command if "=" in word)
    settings = parse({**stated, "cache": str(tmp_path / "cache")})
    data = load(settings.data)
    assert len(data.train.labels) and len(data.test.labels)
    assert federate(settings.data, 0).counts_KC.sum() == len(data.train.labels)
