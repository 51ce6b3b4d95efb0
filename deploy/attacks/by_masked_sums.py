"""Attacks on masked sums: questions by which a coordinator would take a sum of all sites apart.

The honest request is the full list of sites, which the site answers whenever it comes. A second list would be another
equation in the same unknowns, and a list of few sites a sum in which one of them can be found.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attacks.by_the_coordinator import BAD, SITE, answered, ask, not_agreed, refused, settings_of
from attacks.stage import ALONE, Attack, ControlFailed, Refusal, Stage
from client_app.masked_sum import NONCE_BYTES, SumList
from client_app.messages import unpack
from client_app.summed_questions import LIST_QUESTION, NONCE, NONCE_QUESTION, purpose_of
from strategies.core.exchange import QUERY

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
]  # fmt: skip
