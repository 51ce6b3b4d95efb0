"""What a site answers of masked sums: one list per purpose, ever. Beside every refusal a list is answered."""

import json
import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.local_site import NotAgreed
from client_app.masked_sum import NONCE_BYTES, SumList, Words, unmasked_sum
from client_app.tensor_files import WriteFailed
from data import DataError
from site_agent import sum_ledger
from site_agent.audit import Audit
from site_agent.config import read_sites
from site_agent.sum_ledger import MOST_SUMS, SumLedger
from tests.site_files import site_folders, with_mask_keys, write_mask_key

SIX = ("north", "east", "south", "west", "center", "coast")
PURPOSE = "label-counts"
COUNTS = np.array([1, 2, 3], dtype=np.uint64)


def ledgers(folder: Path, names: tuple[str, ...] = SIX, **changes: Any) -> dict[str, SumLedger]:
    """Return the ledgers of sites that can mask, by name."""
    site_folders(folder, site=with_mask_keys(names), sums="masked", **changes)
    return {site.name: SumLedger(site) for site in read_sites(folder).values()}


def asked(sites: dict[str, SumLedger], purpose: str = PURPOSE) -> SumList:
    """Ask every site for its nonce, and return the list of all of them."""
    nonces = [ledger.nonce(purpose, lambda: COUNTS).hex() for ledger in sites.values()]
    federation = next(iter(sites.values())).site.agreement.sha256
    return SumList(federation, purpose, tuple(sites), tuple(nonces))


def part(sum_list: SumList, *names: str) -> SumList:
    """Return the list of these sites, with the nonces they gave."""
    nonces = dict(zip(sum_list.names, sum_list.nonces, strict=True))
    return replace(sum_list, names=names, nonces=tuple(nonces[name] for name in names))


def audit(ledger: SumLedger) -> list[dict[str, Any]]:
    """Return the entries of a site's audit log."""
    return [json.loads(line) for line in Audit(ledger.site.state / "audit.jsonl").lines()]


def test_the_answers_of_all_sites_are_their_sum(tmp_path: Path) -> None:
    sites = ledgers(tmp_path)
    everybody = asked(sites)
    answers = [ledger.answer(PURPOSE, everybody.to_json()) for ledger in sites.values()]
    assert unmasked_sum(answers).tolist() == [6, 12, 18]
    (entry,) = audit(sites["north"])
    assert entry["event"] == "summed" and entry["sites"] == [*SIX]
    assert Audit(sites["north"].site.state / "audit.jsonl").verify() == 1


def test_the_same_request_a_hundred_times_gets_the_same_bytes(tmp_path: Path) -> None:
    sites = ledgers(tmp_path)
    everybody = asked(sites)
    answers = set()
    for _ in range(100):
        assert asked(sites) == everybody
        answers.add(sites["north"].answer(PURPOSE, everybody.to_json()).tobytes())
    assert len(answers) == 1
    assert [entry["event"] for entry in audit(sites["north"])] == ["summed"] + 99 * ["sum repeated"]


def nonce() -> str:
    return secrets.token_hex(NONCE_BYTES)


LISTS: dict[str, tuple[Callable[[SumList], SumList], str]] = {
    "two sites": (lambda all: part(all, "north", "east"), "has 2 sites, and 4 are needed"),
    "half of the sites": (
        lambda all: part(all, "north", "east", "south"),
        "has 3 sites, and 4 are needed",
    ),
    "without this site": (lambda all: part(all, *SIX[1:]), "does not have this site"),
    "a stranger": (
        lambda all: replace(all, names=(*SIX[:5], "mallory")),
        r"has \['mallory'\], which is no site",
    ),
    "a name twice": (lambda all: replace(all, names=(*SIX[:5], "north")), "has a site twice"),
    "another order": (lambda all: part(all, *SIX[::-1]), "not in the order"),
    "another federation.toml": (
        lambda all: replace(all, federation="0" * 64),
        "of another federation.toml",
    ),
    "another sum": (lambda all: replace(all, purpose="class-means"), "for another sum"),
    "repeated nonces": (
        lambda all: replace(all, nonces=(*all.nonces[:5], all.nonces[1])),
        "has a nonce twice",
    ),
    "a nonce that this site did not give": (
        lambda all: replace(all, nonces=(nonce(), *all.nonces[1:])),
        "the nonce that this site gave",
    ),
}


@pytest.mark.parametrize(("change", "reason"), LISTS.values(), ids=[*LISTS])
def test_a_list_that_could_take_a_sum_apart_is_refused(
    tmp_path: Path, change: Callable[[SumList], SumList], reason: str
) -> None:
    sites = ledgers(tmp_path)
    everybody = asked(sites)
    with pytest.raises(NotAgreed, match=reason):
        sites["north"].answer(PURPOSE, change(everybody).to_json())
    (entry,) = audit(sites["north"])
    assert entry["event"] == "sum refused" and entry["sum"] == PURPOSE
    sites["north"].answer(PURPOSE, everybody.to_json())  # a refusal uses nothing up


@pytest.mark.parametrize("text", ["", "{}", "[1]", "no JSON"])
def test_a_list_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    sites = ledgers(tmp_path)
    asked(sites)
    with pytest.raises(NotAgreed, match="no list of sites and nonces"):
        sites["north"].answer(PURPOSE, text)


def test_a_second_list_is_refused_whatever_it_is_about(tmp_path: Path) -> None:
    sites = ledgers(tmp_path)
    everybody = asked(sites)
    first = sites["north"].answer(PURPOSE, everybody.to_json())
    one_fewer = part(everybody, *SIX[:5])
    fresh = replace(everybody, nonces=(everybody.nonces[0], *(nonce() for _ in SIX[1:])))
    for second in (one_fewer, fresh):
        with pytest.raises(NotAgreed, match="another list was answered"):
            sites["north"].answer(PURPOSE, second.to_json())
    # Other sites for another sum would give the missing site's counts by subtraction as well.
    means = asked(sites, "class-means")
    with pytest.raises(NotAgreed, match="an earlier sum was of other sites"):
        sites["north"].answer("class-means", part(means, *SIX[:5]).to_json())
    sites["north"].answer("class-means", means.to_json())
    assert sites["north"].answer(PURPOSE, everybody.to_json()).tobytes() == first.tobytes()
    refused = [entry["why"] for entry in audit(sites["north"]) if entry["event"] == "sum refused"]
    assert len(refused) == 3


def test_one_site_fewer_from_the_first_list_on_is_harmless(tmp_path: Path) -> None:
    """More than half of the sites, with one left out for ever."""
    sites = ledgers(tmp_path)
    everybody = asked(sites)
    five = part(everybody, *SIX[:5])
    answers = [sites[name].answer(PURPOSE, five.to_json()) for name in five.names]
    assert unmasked_sum(answers).tolist() == [5, 10, 15]
    for name in five.names:
        with pytest.raises(NotAgreed, match="another list was answered"):
            sites[name].answer(PURPOSE, everybody.to_json())


def test_two_halves_of_six_sites_get_no_sum(tmp_path: Path) -> None:
    sites = ledgers(tmp_path, min_sites=2)
    everybody = asked(sites)
    for half in (SIX[:3], SIX[3:]):
        for name in half:
            with pytest.raises(NotAgreed, match="has 3 sites, and 4 are needed"):
                sites[name].answer(PURPOSE, part(everybody, *half).to_json())


def test_two_of_three_sites_get_no_sum_though_min_sites_allows_two(tmp_path: Path) -> None:
    sites = ledgers(tmp_path, SIX[:3], min_sites=2)
    everybody = asked(sites)
    with pytest.raises(NotAgreed, match="has 2 sites, and 3 are needed"):
        sites["north"].answer(PURPOSE, part(everybody, "north", "east").to_json())
    sites["north"].answer(PURPOSE, everybody.to_json())


def test_min_sites_holds_for_sums(tmp_path: Path) -> None:
    sites = ledgers(tmp_path, min_sites=6)
    everybody = asked(sites)
    with pytest.raises(NotAgreed, match="has 5 sites, and 6 are needed"):
        sites["north"].answer(PURPOSE, part(everybody, *SIX[:5]).to_json())


@pytest.mark.parametrize("answered", [False, True])
def test_a_state_restored_from_a_backup_repeats_no_mask_over_other_integers(
    tmp_path: Path, answered: bool
) -> None:
    """Before the first question: another nonce. After it: the same nonce with the same integers, so the same bytes."""
    sites = ledgers(tmp_path / "sites")
    state = sites["north"].site.state
    state.mkdir()
    shutil.copytree(state, tmp_path / "empty")
    everybody = asked(sites)
    shutil.copytree(state, tmp_path / "with-nonce")
    first = sites["north"].answer(PURPOSE, everybody.to_json())

    shutil.rmtree(state)
    shutil.copytree(tmp_path / ("with-nonce" if answered else "empty"), state)
    changed = COUNTS + np.uint64(1)
    given = sites["north"].nonce(PURPOSE, lambda: changed).hex()
    if answered:
        assert given == everybody.nonces[0]
        assert (sites["north"].answer(PURPOSE, everybody.to_json()) == first).all()
        return
    assert given != everybody.nonces[0]
    with pytest.raises(NotAgreed, match="the nonce that this site gave"):
        sites["north"].answer(PURPOSE, everybody.to_json())
    second = replace(everybody, nonces=(given, *everybody.nonces[1:]))
    again = sites["north"].answer(PURPOSE, second.to_json())
    differences = (again - first).view(np.int64)
    assert (np.abs(differences) > 2**40).all()  # with the masks of before they would be 1


class Killed(BaseException):
    """What ends a process."""


def test_a_site_killed_between_writing_and_answering_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = ledgers(tmp_path)
    everybody = asked(sites)

    def kill(*words: Any, **named: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(SumLedger, "log", kill)  # the ledger is written, and nothing has left
        with pytest.raises(Killed):
            sites["north"].answer(PURPOSE, everybody.to_json())
    with pytest.raises(NotAgreed, match="another list was answered"):
        sites["north"].answer(PURPOSE, part(everybody, *SIX[:5]).to_json())
    answers = [ledger.answer(PURPOSE, everybody.to_json()) for ledger in sites.values()]
    assert unmasked_sum(answers).tolist() == [6, 12, 18]


def test_nothing_leaves_that_is_not_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of what happens: written, flushed, in the audit log, and only then returned."""
    sites = ledgers(tmp_path)
    happened: list[str] = []
    write, log, flush = SumLedger.write, SumLedger.log, os.fsync

    def flushed(number: int) -> None:
        happened.append("flush")
        flush(number)

    monkeypatch.setattr(os, "fsync", flushed)

    def noted(name: str, call: Callable[..., None]) -> Callable[..., None]:
        def noting(*words: Any, **named: Any) -> None:
            call(*words, **named)
            happened.append(name)

        return noting

    monkeypatch.setattr(SumLedger, "write", noted("written", write))
    monkeypatch.setattr(SumLedger, "log", noted("logged", log))
    sites["north"].nonce(PURPOSE, lambda: COUNTS)
    assert happened == ["flush", "flush", "written"]
    happened.clear()
    sites["north"].answer(PURPOSE, asked(sites).to_json())
    # The file, its folder's names, the audit log and its last hash; nothing is returned before.
    assert happened[-6:] == ["flush", "flush", "written", "flush", "flush", "logged"]

    def full(*words: Any, **named: Any) -> None:
        raise WriteFailed("no space left on device")

    monkeypatch.setattr(sum_ledger, "write_atomically", full)
    with pytest.raises(WriteFailed):
        sites["east"].answer(PURPOSE, asked(sites).to_json())


def test_a_damaged_ledger_answers_nothing(tmp_path: Path) -> None:
    sites = ledgers(tmp_path)
    everybody = asked(sites)
    (file,) = sites["north"].folder.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    for call in (
        lambda: sites["north"].nonce(PURPOSE, lambda: COUNTS),
        lambda: sites["north"].answer(PURPOSE, everybody.to_json()),
    ):
        with pytest.raises(DataError, match="the ledger of masked sums is damaged"):
            call()
    sites["east"].answer(PURPOSE, everybody.to_json())


def test_another_key_than_the_agreed_one_masks_nothing(tmp_path: Path) -> None:
    """Masks of another key would not cancel, and nobody could say whose they are."""
    sites = ledgers(tmp_path)
    write_mask_key(sites["north"].site.mask_key, "mallory")
    with pytest.raises(DataError, match=r"mask\.key: is not the mask key .* names for north"):
        sites["north"].nonce(PURPOSE, lambda: COUNTS)
    sites["east"].nonce(PURPOSE, lambda: COUNTS)
    sites["east"].site.mask_key.chmod(0o640)
    with pytest.raises(DataError, match="others may read this key"):
        sites["east"].nonce(PURPOSE, lambda: COUNTS)


def test_the_number_of_sums_is_limited(tmp_path: Path) -> None:
    """Each is another look at the same samples: a grid of other bits or range is another sum."""
    sites = ledgers(tmp_path)
    for number in range(MOST_SUMS):
        sites["north"].nonce(f"sum {number}", lambda: COUNTS)
    with pytest.raises(NotAgreed, match="16 sums are asked for already"):
        sites["north"].nonce("one more", lambda: COUNTS)
    sites["north"].nonce("sum 0", lambda: COUNTS)


def test_integers_are_computed_once(tmp_path: Path) -> None:
    sites = ledgers(tmp_path)
    calls: list[int] = []

    def compute() -> Words:
        calls.append(1)
        return COUNTS

    first = sites["north"].nonce(PURPOSE, compute)
    assert sites["north"].nonce(PURPOSE, compute) == first and len(calls) == 1
