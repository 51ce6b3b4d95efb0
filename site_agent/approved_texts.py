"""The texts that a running site answers: the approved federation.toml, and for a time the former one.

`fedskew-site approve` writes below STATE/approved. A running site looks there before every message, so it needs no
restart for another text. It does for another release: a process answers with the code that it has loaded at its start.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from data import DataError
from data.file_stamps import FileStamp, stamp_of
from data.package_files import canonical
from site_agent.app_files import app_hash
from site_agent.approval import SITE_PACKAGES, approved_files, check_can_run
from site_agent.config import Site, read_site
from site_agent.former_approval import (
    APP,
    APPROVED,
    FORMER,
    RECORD,
    StoredApproval,
    as_former,
    in_words,
    kept_former,
    now,
    read_approval,
)
from site_agent.pool import App, Describe

logger = logging.getLogger("fedskew.site")
SHOWN = 16
"""Characters of a hash that a sentence shows."""
COPY, COPY_OF_FORMER = "app", "app-former"
"""Folders below the state: the copies that run of another app than FedSkew's."""


class NotApproved(Exception):
    """A message that is not answered. The sentence leaves the site: it has hashes and a time, and no path."""


class TextNotApproved(NotApproved):
    """The same, because of the federation.toml that the message states."""


@dataclass(frozen=True)
class ApprovedText:
    """One federation.toml with its app, and what answers messages under it."""

    federation: str
    """The sha256 of federation.toml."""
    app: str
    """The hash of the app."""
    code: App | None = None
    """What a worker runs; None leaves to the pool what it has."""
    describe: Describe | None = None
    """What the audit log says of a reply, as of `Pool`."""
    until: datetime | None = None
    """When a former approval ends; None for the one that counts."""
    refusal: str = ""
    """Why nothing is answered under this text, as the coordinator learns it; empty where messages are."""

    @property
    def current(self) -> "ApprovedText":
        """This text: alone it is all that a site has approved."""
        return self

    def chosen(self, stated: str, app: str) -> "ApprovedText":
        """Return the text under which a message is answered: this one.

        Args:
            stated: The sha256 of federation.toml that the message states; what a worker runs compares it.
            app: The hash of the app that came with it.

        Raises:
            TextNotApproved: another text, a former one whose time is over, or one that cannot be answered.
            NotApproved: another app.
        """
        if stated and self.federation and stated != self.federation:
            name = f"federation.toml {stated[:SHOWN]}"
            raise TextNotApproved(f"{name} is not approved at this site")
        former = f"the former federation.toml {self.federation[:SHOWN]}"
        if self.until is not None and now() >= self.until:
            raise TextNotApproved(
                f"{former} was approved at this site until {in_words(self.until)}"
            )
        if self.refusal:
            raise TextNotApproved(self.refusal)
        if app != self.app:
            of_former = f" for {former}" if self.until else ""
            raise NotApproved(f"the app {app[:SHOWN]} is not approved at this site{of_former}")
        return self


MakeCode = Callable[[Site, Mapping[str, bytes], Path], tuple[App, Describe | None]]
"""(site under a text, the app's files, folder for a copy of another app) -> what a worker runs and describes."""


class ApprovedTexts:
    """What is approved at a site, read again whenever somebody there approves another text."""

    def __init__(self, file: Path, site: Site, make_code: MakeCode) -> None:
        """Read what is approved.

        Args:
            file: The site's site.toml.
            site: What it says.
            make_code: Returns what answers under a text.

        Raises:
            DataError: as `approved_files`.
        """
        self.file = file
        self.site = site
        self.make_code = make_code
        self.folder = site.state / APPROVED
        self.stamps = self.read_stamps()
        files = approved_files(site)
        self.loaded = site_packages(files)
        """The sources that this process answers with, by name."""
        self.current = self.text(site, files)
        self.former = self.former_text()

    def chosen(self, stated: str, app: str) -> ApprovedText:
        """Return the text under which a message is answered: the one that it states, or else the current one.

        A message of another app than FedSkew's states none: there the app decides. Arguments and errors are those of
        `ApprovedText.chosen`.
        """
        self.refresh()
        former = self.former
        if former is None or stated == self.current.federation:
            return self.current.chosen(stated, app)
        is_app_of_former = not stated and app == former.app != self.current.app
        if stated == former.federation or is_app_of_former:
            return former.chosen(stated, app)
        return self.current.chosen(stated, app)

    def refresh(self) -> None:
        """Take over what was approved since the last look. Raises OSError where the audit log cannot be written."""
        before, stamps = self.stamps, self.read_stamps()
        if stamps == before:
            return
        self.stamps = stamps
        # The former approval is written first: until the new one is there, the current text stays as it is.
        is_other_text = stamps[0] != before[0]
        if is_other_text and not self.take_over():
            return
        self.former = self.former_text()
        logger.info("approved now: federation.toml %s", self.current.federation)
        self.site.audit.write("taken over", **self.entry())

    def take_over(self) -> bool:
        """Make the approved text the current one, and return whether there is one that is complete."""
        try:
            approved = read_approval(self.folder)
        except DataError as error:
            # It is being written at this moment: its last file changes the stamps once more.
            logger.info("the approval stays as it was: %s", error)
            return False
        try:
            self.site = self.checked_site(approved)
            self.current = self.text(self.site, approved.files)
        except DataError as error:
            logger.error("start the site again: the new approval cannot be taken over: %s", error)
            name = f"federation.toml {approved.sha256[:SHOWN]}"
            refusal = f"this site has approved {name} and has to be started again for it"
            self.current = ApprovedText(approved.sha256, approved.app, refusal=refusal)
        return True

    def checked_site(self, approved: StoredApproval) -> Site:
        """Return the site as site.toml says now, which `approve` has shown, under a new text.

        Raises DataError where this process cannot go on as that site.
        """
        site = read_site(self.file, approved.agreement)
        is_same = site.state == self.site.state and (site.app is None) == (self.site.app is None)
        if not is_same:
            raise DataError("has another state, or another kind of app", where=str(self.file))
        self.check_code(site, approved)
        return site

    def check_code(self, site: Site, approved: StoredApproval) -> None:
        """Raise DataError unless this process can answer with an approved app.

        FedSkew's own must be the code that is installed, and the code that was loaded when this process began.
        """
        name = str(approved.folder / APP)
        check_can_run(site, approved.files, name)
        if site.app is None and site_packages(approved.files) != self.loaded:
            raise DataError("is not the release that this process was started with", where=name)

    def text(
        self,
        site: Site,
        files: Mapping[str, bytes],
        until: datetime | None = None,
    ) -> ApprovedText:
        """Return an approved text, ready to answer. Raises DataError as `make_code`."""
        copy = site.state / (COPY if until is None else COPY_OF_FORMER)
        code, describe = self.make_code(site, files, copy)
        return ApprovedText(site.agreement.sha256, app_hash(files), code, describe, until)

    def former_text(self) -> ApprovedText | None:
        """Return the former text, also after its end, so that a message of it gets a clear answer; None without one."""
        former = kept_former(self.site)
        if former is None:
            return None
        assert former.until is not None
        try:
            site = as_former(self.site, former)
            self.check_code(site, former)
            return self.text(site, former.files, former.until)
        except DataError as error:
            logger.error("the former federation.toml is not answered: %s", error)
            name = f"the former federation.toml {former.sha256[:SHOWN]}"
            refusal = f"{name} cannot be answered at this site any more"
            return ApprovedText(former.sha256, former.app, until=former.until, refusal=refusal)

    def read_stamps(self) -> tuple[FileStamp, FileStamp]:
        """Return what changes whenever an approval is written."""
        return stamp_of(self.folder / RECORD), stamp_of(self.folder / FORMER / RECORD)

    def entry(self) -> dict[str, Any]:
        """Return what the audit log says of the texts."""
        entry = {"app": self.current.app, "federation": self.current.federation}
        if self.former is not None:
            assert self.former.until is not None
            entry["former"] = self.former.federation
            entry["until"] = self.former.until.isoformat(timespec="seconds")
        return entry


def site_packages(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the sources of an app's packages that run at a site, by name."""
    return {
        name: canonical(content)
        for name, content in files.items()
        if name.partition("/")[0] in SITE_PACKAGES and name.endswith(".py")
    }
