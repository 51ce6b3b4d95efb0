"""Attacks on masked sums: questions by which a coordinator would take a sum of all sites apart.

The honest request is the full list of sites, which the site answers whenever it comes. A second list would be another
equation in the same unknowns, and a list of few sites a sum in which one of them can be found.
"""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
from flwr.app import Message

from attacks.by_the_coordinator import (
    BAD,
    SITE,
    answered,
    aside,
    ask,
    not_agreed,
    refused,
    settings_of,
)
from attacks.stage import ALONE, Attack, ControlFailed, Refusal, Stage, Succeeded
from client_app.local_site import NotAgreed
from client_app.masked_sum import NONCE_BYTES, SumList, unmasked_sum
from client_app.messages import pack, unpack
from client_app.runtime import site_runtime
from client_app.summed_questions import LIST_QUESTION, NONCE, NONCE_QUESTION, purpose_of
from data.agreement import Member
from fedskew.engines.rehearsal import RehearsalGrid
from server_app.app import run
from site_agent.config import read_site
from site_agent.keys import make_mask_key
from site_agent.sum_ledger import SumLedger
from strategies.core.exchange import QUERY, TooFewReplies

METHOD, VARIANT = "fedshift", "logit-shift"
ABOUT: dict[str, Any] = {"kind": QUERY, "method": METHOD}
Change = Callable[[SumList], SumList]


def everybody(stage: Stage) -> SumList:
    """Return the list of all sites, with the nonce that the site gives; it cannot know the others'."""
    content, _ = ask(stage, question=NONCE_QUESTION, more={"variant": VARIANT}, **ABOUT)
    name = f"{SITE}/upload/{NONCE}"
    if name not in content:
        raise ControlFailed(f"the site gives no nonce: the reply holds {', '.join(content)}")
    own = unpack(content[name])[NONCE].numpy().tobytes().hex()
    run_spec = settings_of(stage, "hostile", method=METHOD).run_spec()
    (variant,) = [part for part in run_spec.variants if part.name == VARIANT]
    agreement = stage.folder.agreement
    nonces = [f"{number:02x}" * NONCE_BYTES for number in range(len(agreement.names))]
    nonces[SITE] = own
    purpose = purpose_of(variant, run_spec)
    return SumList(agreement.sha256, purpose, tuple(agreement.names), tuple(nonces))


def listed(sum_list: SumList) -> dict[str, Any]:
    """Return what asks for the masked words of a list."""
    more = {"variant": VARIANT, "list": sum_list.to_json()}
    return {"question": LIST_QUESTION, "more": more, **ABOUT}


def full_list(stage: Stage) -> str:
    """Ask for the sum of all sites."""
    return answered(stage, "upload/words", **listed(everybody(stage)))


def hundred_times(stage: Stage) -> list[Refusal]:
    """Ask for the same sum a hundred times, and compare the answers' bytes."""
    question = listed(everybody(stage))
    answers = set()
    for _ in range(100):
        content, _ = ask(stage, **question)
        answers.add(unpack(content[f"{SITE}/upload/words"])["words"].numpy().tobytes())
    if len(answers) > 1:
        return []
    return [Refusal("the same bytes", "100 requests got one answer")]


def other_list(change: Change) -> Callable[[Stage], list[Refusal]]:
    """Return an attack by a changed list."""
    return lambda stage: refused(stage, **listed(change(everybody(stage))))


def without_last(sum_list: SumList) -> SumList:
    """Return a list without its last site."""
    return replace(sum_list, names=sum_list.names[:-1], nonces=sum_list.nonces[:-1])


def other_nonce(sum_list: SumList) -> SumList:
    """Return the same sites with another nonce of the last one."""
    return replace(sum_list, nonces=(*sum_list.nonces[:-1], "ff" * NONCE_BYTES))


def repeated_nonce(sum_list: SumList) -> SumList:
    """Return the same sites, of which the last has the nonce of the one before."""
    return replace(sum_list, nonces=(*sum_list.nonces[:-1], sum_list.nonces[-2]))


def last_name(name: str) -> Change:
    """Return what puts a name in place of the last site's; "" is that of the first."""
    return lambda sums: replace(sums, names=(*sums.names[:-1], name or sums.names[0]))


def other_federation(sum_list: SumList) -> SumList:
    """Return the list for another federation.toml."""
    return replace(sum_list, federation="0" * 64)


def in_the_clear(stage: Stage) -> list[Refusal]:
    """Ask for class counts as where sums are plain."""
    return refused(stage, question="class-counts", **ABOUT)


def with_a_key(stage: Stage) -> list[Refusal]:
    """Put a key of the coordinator's own into the message, with which the site would mask for it."""
    question = listed(everybody(stage))
    more = json.loads(question["more"]["list"])
    more["keys"] = ["x25519 " + "A" * 43 + "="] * len(more["sites"])
    question["more"]["list"] = json.dumps(more, sort_keys=True)
    return refused(stage, **question)


def restored(stage: Stage) -> list[Refusal]:
    """Let the site's state be as before the first question, as from a backup, and send the list of then."""
    before = listed(everybody(stage))
    ask(stage, **before)
    shutil.rmtree(SumLedger(aside(stage)).folder)
    everybody(stage)
    return refused(stage, **before)


class Killed(BaseException):
    """What ends a process."""


def killed_in_between(stage: Stage) -> list[Refusal]:
    """Kill the site once a list is written down and before anything has left, then send it another list."""
    ledger, purpose = SumLedger(aside(stage)), "killed"
    nonce = ledger.nonce(purpose, lambda: COUNTS).hex()
    first = replace(everybody(stage), purpose=purpose)
    nonces = (nonce, *first.nonces[1:])
    first = replace(first, nonces=nonces)

    def kill(*words: object, **named: object) -> None:
        raise Killed

    with patch.object(SumLedger, "log", kill), suppress(Killed):
        ledger.answer(purpose, first.to_json())
        raise ControlFailed("the site was not killed")
    return refusals_of(ledger, purpose, other_nonce(first))


# ---- six sites -------------------------------------------------------------------------------------------------------

COUNTS = np.array([1, 2, 3], dtype=np.uint64)
"""What each site has."""


def six_sites(stage: Stage, name: str) -> list[SumLedger]:
    """Return the ledgers of six sites, in a folder of the attack's own."""
    site = read_site(stage.place(SITE) / "site.toml")
    folder = stage.federation.work / name
    members = []
    sites = []
    for number in range(6):
        own = folder / f"site-{number}"
        own.mkdir(parents=True)
        public = make_mask_key(own / "mask.key")
        members.append(Member(f"site-{number}", site.agreement.sites[0].key, mask_key=public))
        sites.append(
            replace(
                site,
                name=f"site-{number}",
                number=number,
                state=own / "state",
                mask_key=own / "mask.key",
            )
        )
    agreement = replace(site.agreement, sites=tuple(members), sha256="6" * 64, sums="masked")
    return [SumLedger(replace(one, agreement=agreement)) for one in sites]


def list_of(ledgers: list[SumLedger]) -> SumList:
    """Ask every site for its nonce, and return the list of all of them."""
    names = tuple(ledger.site.name for ledger in ledgers)
    nonces = tuple(ledger.nonce(VARIANT, lambda: COUNTS).hex() for ledger in ledgers)
    return SumList(ledgers[0].site.agreement.sha256, VARIANT, names, nonces)


def part(sum_list: SumList, first: int, last: int) -> SumList:
    """Return the list of some sites in a row, with the nonces they gave."""
    return replace(sum_list, names=sum_list.names[first:last], nonces=sum_list.nonces[first:last])


def refusals_of(ledger: SumLedger, purpose: str, sum_list: SumList) -> list[Refusal]:
    """Return how a site refuses a list. Raises Succeeded where it answers."""
    try:
        ledger.answer(purpose, sum_list.to_json())
    except NotAgreed as error:
        return [Refusal(type(error).__name__, str(error))]
    raise Succeeded(f"{ledger.site.name} answered the list of {', '.join(sum_list.names)}")


def sum_of_six(stage: Stage) -> str:
    """Ask six sites for the sum of all."""
    ledgers = six_sites(stage, f"six-{len([*stage.federation.work.glob('six-*')])}")
    sum_list = list_of(ledgers)
    total = unmasked_sum([ledger.answer(VARIANT, sum_list.to_json()) for ledger in ledgers])
    if total.tolist() != [6, 12, 18]:
        raise ControlFailed(f"the sum is {total.tolist()}")
    return f"the sum of six sites: {total.tolist()}"


def two_halves(stage: Stage) -> list[Refusal]:
    """Ask the first three of six sites for their sum, and the last three for theirs."""
    ledgers = six_sites(stage, "two-halves")
    sum_list = list_of(ledgers)
    refusals = refusals_of(ledgers[0], VARIANT, part(sum_list, 0, 3))
    return [*refusals, *refusals_of(ledgers[3], VARIANT, part(sum_list, 3, 6))]


def one_fewer(stage: Stage) -> list[Refusal]:
    """Ask six sites for the sum of all, and then for that of five: the difference is one site's."""
    ledgers = six_sites(stage, "one-fewer")
    sum_list = list_of(ledgers)
    ledgers[0].answer(VARIANT, sum_list.to_json())
    return refusals_of(ledgers[0], VARIANT, part(sum_list, 0, 5))


# ---- a site's words --------------------------------------------------------------------------------------------------


class ChangingWords(RehearsalGrid):
    """A grid on which the second site adds to its first masked word."""

    added = 0

    def answer_here(self, message: Message) -> Message:
        reply = super().answer_here(message)
        name = "1/upload/words"
        if self.added and name in reply.content.array_records:
            words = unpack(reply.content.array_records[name])["words"].clone()
            words[0] += self.added
            reply.content[name] = pack({"words": words})
        return reply


def with_added(stage: Stage, added: int) -> str:
    """Train a round with a prior from masked counts, one site's first word changed, and return what was trained."""
    agreement = stage.folder.agreement
    work = stage.federation.work / f"words-{added}"
    sites = {}
    for number in range(len(agreement.names)):
        site = read_site(stage.place(number) / "site.toml")
        sites[number] = replace(site, state=work / site.name)
    settings = settings_of(stage, work.name, method=METHOD, rounds=1)
    site_runtime.cache_clear()  # the sites' states are others here
    with ChangingWords(sites, agreement) as grid:
        grid.added = added
        summary = run(grid, settings, lambda line: None)
    return f"the sum is taken, and the run has {summary['rounds']} round"


def honest_words(stage: Stage) -> str:
    """Train with the words as they are."""
    return with_added(stage, 0)


def out_of_range(stage: Stage) -> list[Refusal]:
    """Send a word that makes the sum of counts one of 2^62 samples."""
    try:
        trained = with_added(stage, 2**62)
    except TooFewReplies as error:
        return [Refusal(type(error).__name__, str(error))]
    raise Succeeded(trained)


def row(what: str, change: Change, words: str) -> Attack:
    """Return a row about a changed list."""
    return Attack(what, BAD, ALONE, full_list, other_list(change), not_agreed(words))


ATTACKS = [
    Attack("class counts in the clear, where federation.toml says masked", BAD, ALONE, full_list, in_the_clear,
           (Refusal("NotAllowed", "sums = masked"),)),
    Attack("the same masked sum a hundred times", BAD, ALONE, full_list, hundred_times,
           (Refusal("the same bytes", "one answer"),)),
    row("a second list of the same sites for a masked sum", other_nonce, "another list was answered"),
    row("a masked sum of two of three sites", without_last, "has 2 sites, and 3 are needed"),
    row("a stranger in the list of a masked sum", last_name("mallory"), "which is no site of the federation"),
    row("a site twice in the list of a masked sum", last_name(""), "has a site twice"),
    row("a nonce twice in the list of a masked sum", repeated_nonce, "has a nonce twice"),
    row("a masked sum's list of another federation.toml", other_federation, "of another federation.toml"),
    Attack("a mask key in the message", BAD, ALONE, full_list, with_a_key,
           not_agreed("no list of sites and nonces")),
    Attack("a masked sum's list again, to a site whose state was restored from a backup", BAD, ALONE, full_list,
           restored, not_agreed("the nonce that this site gave")),
    Attack("another list, to a site that was killed between writing and answering", BAD, ALONE, full_list,
           killed_in_between, not_agreed("another list was answered")),
    Attack("masked sums of two halves of six sites", BAD, ALONE, sum_of_six, two_halves,
           2 * not_agreed("has 3 sites, and 4 are needed")),
    Attack("a masked sum of five of six sites, after that of all", BAD, ALONE, sum_of_six, one_fewer,
           not_agreed("another list was answered")),
    Attack("masked words out of range", "a site", ALONE, honest_words, out_of_range,
           (Refusal("TooFewReplies", "masks hide which"),)),
]  # fmt: skip
