"""A few hundred changed files over every reader, the same ones every time; `make fuzz` takes 10,000."""

import pytest
from files import fuzz_all
from harness import BAD, Edit, Subject, Tally, Verdict, fuzz, judge, table
from hypothesis import strategies as st

EXAMPLES = 80


def test_no_changed_file_is_more_than_refused_or_plausible() -> None:
    tallies = fuzz_all(EXAMPLES)
    bad = [line for tally in tallies.values() for line in tally.bad]
    assert not bad, "\n".join(bad)
    assert sum(tally.counts.total() for tally in tallies.values()) > EXAMPLES * 0.8
    mended = {
        "cache",
        "rounds.jsonl",
        "summary.json",
        "settings.json",
    }  # what is damaged there is none
    for name, tally in tallies.items():
        assert tally.counts[Verdict.REFUSED] or name in mended, (
            f"{name}: nothing was refused, so nothing was tried"
        )
    assert tallies["cache"].counts[Verdict.GENUINE] == tallies["cache"].counts.total(), (
        "it mends itself"
    )


def test_the_harness_tells_the_outcomes_apart(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("harness.LIMIT", 0.2)

    def read(arrived, folder):
        match arrived:
            case "refused":
                raise ValueError("one sentence")
            case "two lines":
                raise ValueError("one\ntwo")
            case "crashed":
                raise KeyError("x")
            case "hung":
                while True:
                    pass
            case "outside":
                (folder.parent / "escaped").write_text("")
        return arrived

    subject = Subject(
        "words", st.just(""), read, "genuine", (ValueError,), lambda result: result == "plausible"
    )
    expected = {
        "genuine": Verdict.GENUINE, "plausible": Verdict.PLAUSIBLE, "other": Verdict.WRONG,
        "refused": Verdict.REFUSED, "two lines": Verdict.CRASHED, "crashed": Verdict.CRASHED,
        "hung": Verdict.HUNG, "outside": Verdict.OUTSIDE,
    }  # fmt: skip
    inside = tmp_path / "inside"
    inside.mkdir()
    for arrived, outcome in expected.items():
        assert judge(subject, arrived, inside)[0] is outcome, arrived
    tally = fuzz(
        Subject("words", st.sampled_from(["crashed"]), read, "", (ValueError,)),
        5,
        tmp_path / "root",
    )
    assert (
        tally.counts.keys() == {Verdict.CRASHED} and "words: crashed: 'crashed': " in tally.bad[0]
    )
    assert table({"words": tally}).splitlines()[2] == "| words | 1 | 0 | 0 | 0 | 0 | 1 | 0 | 0 |"
    assert (
        table({"none": Tally()}).endswith("| all | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |")
        and len(BAD) == 4
    )


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("flip", b"abc`ef"), ("cut", b"abc"), ("delete", b"abcf"), ("repeat", b"abcdedef"),
        ("insert", b"abcxydef"), ("overwrite", b"abcxyf"),
    ],
)  # fmt: skip
def test_edits(kind: str, changed: bytes) -> None:
    edit = Edit(kind, 0.5, 2, b"xy")
    assert edit.apply(b"abcdef") == changed
