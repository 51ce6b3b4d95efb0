"""The objects that a site may fetch: those of the messages that it was given.

flwr names an object by the sha256 of its content, and its SuperLink serves an object of a run to every node that names
it. A site could so fetch another's update, or test its guesses of another's class counts, one name each.
"""

import json
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from google.protobuf.message import DecodeError

from fedskew.federation.flower_internals import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullMessagesResponse,
    PullObjectRequest,
)

KEPT = 8
"""Messages of each site whose objects it may fetch: a SuperNode fetches those of one at a time."""
LONGEST = 2**20
"""Bytes of the file beyond which it is written anew, with what still counts."""

Names = frozenset[tuple[int, str]]
"""Runs and object ids."""


class HandedOut:
    """The objects of each site's last messages, also in a file: sites may be fetching when a gateway is killed."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.by_site: defaultdict[str, deque[Names]] = defaultdict(lambda: deque(maxlen=KEPT))
        for site, names in self.read():
            self.by_site[site].append(names)
        self.rewrite()

    def note(self, site: str, response: PullMessagesResponse) -> None:
        """Let a site fetch the objects of a response's messages."""
        allowed: set[tuple[int, str]] = set()
        trees = response.message_object_trees
        for message, tree in zip(response.messages_list, trees, strict=False):
            run = message.metadata.run_id
            allowed.update((run, name) for name in names_of(tree))
        names: Names = frozenset(allowed)
        if not names:
            return
        self.by_site[site].append(names)
        with suppress(OSError):  # a full disk costs what a gateway that is killed would have left
            with self.file.open("a", encoding="utf-8") as file:
                file.write(line_of(site, names))
            if self.file.stat().st_size > LONGEST:
                self.rewrite()

    def allows(self, site: str, run: int, name: str) -> bool:
        """Return whether an object belongs to a message that was handed out to a site."""
        return any((run, name) in names for names in self.by_site.get(site, ()))

    def allows_fetching(self, site: str, body: bytes) -> bool:
        """Return whether a site may have what the body of its pull-object names."""
        try:
            question = PullObjectRequest.FromString(body)
        except DecodeError:
            return False
        return self.allows(site, question.run_id, question.object_id)

    def allows_confirming(self, site: str, body: bytes) -> bool:
        """Return whether a site may say that it has a message, upon which the SuperLink deletes its object."""
        try:
            question = ConfirmMessageReceivedRequest.FromString(body)
        except DecodeError:
            return False
        return self.allows(site, question.run_id, question.message_object_id)

    def read(self) -> Iterator[tuple[str, Names]]:
        """Yield what the file holds, line by line; a line that was cut or damaged is left out."""
        try:
            lines = self.file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return
        for line in lines:
            with suppress(ValueError, TypeError, LookupError):
                entry = json.loads(line)
                site = str(entry["site"])
                names = entry["objects"]
                yield site, frozenset((int(run), str(name)) for run, name in names)

    def rewrite(self) -> None:
        """Write the file anew with what still counts."""
        partial = self.file.with_name(f"{self.file.name}.part")
        lines: list[str] = []
        for site, kept in self.by_site.items():
            lines.extend(line_of(site, names) for names in kept)
        with suppress(OSError):
            partial.write_text("".join(lines), encoding="utf-8")
            partial.replace(self.file)


def names_of(tree: ObjectTree) -> Iterator[str]:
    """Yield the ids of an object and of all that it consists of."""
    yield tree.object_id
    for child in tree.children:
        yield from names_of(child)


def line_of(site: str, names: Names) -> str:
    """Return a line of the file."""
    return json.dumps({"site": site, "objects": sorted(names)}) + "\n"
