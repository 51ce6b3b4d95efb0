"""What a site answers of masked sums: one list per purpose, ever. Beside every refusal a list is answered."""

import json
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.local_site import NotAgreed
from client_app.masked_sum import NONCE_BYTES, SumList, unmasked_sum
from data import DataError
from site_agent import sum_ledger
from site_agent.audit import Audit
from site_agent.config import read_sites
from site_agent.sum_ledger import SumLedger
from tests.site_files import site_folders, with_mask_keys, write_mask_key

SIX = ("north", "east", "south", "west", "center", "coast")
PURPOSE = "label-counts"
COUNTS = np.array([1, 2, 3], dtype=np.uint64)
Ledgers = dict[str, SumLedger]


def ledgers(folder: Path, names: tuple[str, ...] = SIX, **changes: Any) -> Ledgers:
    """Return the ledgers of sites that can mask, by name."""
    site_folders(folder, site=with_mask_keys(names), sums="masked", **changes)
    return {site.name: SumLedger(site) for site in read_sites(folder).values()}


@pytest.fixture
def sites(tmp_path: Path) -> Ledgers:
    return ledgers(tmp_path / "sites")


def asked(sites: Ledgers, purpose: str = PURPOSE) -> SumList:
    """Ask every site for its nonce, and return the list of all of them."""
    nonces = [ledger.nonce(purpose, lambda: COUNTS).hex() for ledger in sites.values()]
    federation = next(iter(sites.values())).site.agreement.sha256
    return SumList(federation, purpose, tuple(sites), tuple(nonces))


def part(sum_list: SumList, *names: str) -> SumList:
    """Return the list of these sites, with the nonces they gave."""
    nonces = dict(zip(sum_list.names, sum_list.nonces, strict=True))
    return replace(sum_list, names=names, nonces=tuple(nonces[name] for name in names))


def answer(ledger: SumLedger, sum_list: SumList) -> Any:
    return ledger.answer(sum_list.purpose, sum_list.to_json())


def is_refused(ledger: SumLedger, sum_list: SumList) -> bool:
    try:
        answer(ledger, sum_list)
    except NotAgreed:
        return True
    return False


def events(ledger: SumLedger) -> list[str]:
    return [json.loads(line)["event"] for line in ledger.site.audit.lines()]


def test_the_answers_of_all_sites_are_their_sum_and_a_repeated_one_has_the_same_bytes(
    sites: Ledgers,
) -> None:
    everybody = asked(sites)
    answers = [answer(ledger, everybody) for ledger in sites.values()]
    assert unmasked_sum(answers).tolist() == [6, 12, 18]
    assert asked(sites) == everybody
    assert answer(sites["north"], everybody).tobytes() == answers[0].tobytes()
    assert events(sites["north"]) == ["summed", "sum repeated"]


def nonce() -> str:
    return secrets.token_hex(NONCE_BYTES)


def test_a_list_that_could_take_a_sum_apart_is_refused(sites: Ledgers) -> None:
    everybody = asked(sites)
    north, nonces = sites["north"], everybody.nonces
    wrong = [
        part(everybody, *SIX[:5]),
        part(everybody, *SIX[1:]),  # without this site
        replace(everybody, names=(*SIX[:5], "mallory")),
        part(everybody, *SIX[:4], SIX[5], SIX[4]),  # in another order
        replace(everybody, federation="0" * 64),
        replace(everybody, purpose="class-means"),
        replace(everybody, nonces=(*nonces[:5], nonces[1])),
        replace(everybody, nonces=(nonce(), *nonces[1:])),  # another than this site gave
    ]
    whole = everybody.to_json()  # other texts of the same list would have other masks
    texts = [*(one.to_json() for one in wrong), "{}", "no JSON", f" {whole}", f"{whole} "]
    for text in texts:
        with pytest.raises(NotAgreed):
            north.answer(PURPOSE, text)
    assert events(north) == ["sum refused"] * len(texts)
    # A refusal uses nothing up; with another site's new nonce it is another list.
    answers = [answer(ledger, everybody) for ledger in sites.values()]
    assert unmasked_sum(answers).tolist() == [6, 12, 18]
    assert is_refused(north, replace(everybody, nonces=(*nonces[:5], nonce())))
    assert not is_refused(north, asked(sites, "class-means"))


def test_a_site_killed_between_writing_and_answering_gives_the_same_bytes(
    sites: Ledgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    everybody = asked(sites)

    def kill(*words: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Audit, "write", kill)  # the ledger is written, and nothing has left
        with pytest.raises(KeyboardInterrupt):
            answer(sites["north"], everybody)
    assert is_refused(sites["north"], part(everybody, *SIX[:5]))
    answers = [answer(ledger, everybody) for ledger in sites.values()]
    assert unmasked_sum(answers).tolist() == [6, 12, 18]


def test_a_damaged_ledger_and_another_key_answer_nothing(sites: Ledgers) -> None:
    everybody, north, east = asked(sites), sites["north"], sites["east"]
    (file,) = north.folder.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError):
        answer(north, everybody)
    with pytest.raises(DataError):
        north.nonce(PURPOSE, lambda: COUNTS)
    answer(east, everybody)
    east.nonce("another", lambda: COUNTS)
    for name, mode in (("mallory", 0o600), ("east", 0o640)):  # not as agreed; for others to read
        write_mask_key(east.site.mask_key, name)
        east.site.mask_key.chmod(mode)
        with pytest.raises(DataError):
            east.nonce("a third", lambda: COUNTS)


def test_a_full_disk_leaves_nothing_that_reads_as_a_damaged_ledger(
    sites: Ledgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    north = sites["north"]

    def full(*words: Any, **named: Any) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(sum_ledger, "write_atomically", full)
        with pytest.raises(OSError, match="no space"):
            north.nonce(PURPOSE, lambda: COUNTS)
    north.nonce(PURPOSE, lambda: COUNTS)
    (file,) = north.folder.glob("*.safetensors")
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_number_of_sums_is_limited(sites: Ledgers) -> None:
    """Each is another look at the same samples: a grid of other bits or range is another sum."""
    north = sites["north"]
    for number in range(16):
        north.nonce(f"sum {number}", lambda: COUNTS)
    with pytest.raises(NotAgreed):
        north.nonce("one more", lambda: COUNTS)
    north.nonce("sum 0", lambda: pytest.fail("its integers are kept"))
