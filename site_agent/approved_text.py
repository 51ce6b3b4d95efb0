"""The federation.toml and app that a running site answers for.

`fedskew-site approve` writes below STATE/approved. A running site looks there before every message, so it needs no
restart for another text. It does for another release: a process answers with the code that it has loaded at its start.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data import DataError
from data.file_stamps import stamp_of
from data.package_files import canonical
from site_agent.app_files import app_hash
from site_agent.approval import SITE_PACKAGES, approved_files, check_can_run
from site_agent.config import Site, read_site
from site_agent.pool import App, Describe
from site_agent.stored_approval import APP, APPROVED, RECORD, StoredApproval, read_approval

logger = logging.getLogger("fedskew.site")
SHOWN = 16
"""Characters of a hash that a sentence shows."""


class NotApproved(Exception):
    """A message that is not answered. The sentence leaves the site: it has hashes, and no path."""


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
    refusal: str = ""
    """Why nothing is answered under this text, as the coordinator learns it; empty where messages are."""

    @property
    def current(self) -> "ApprovedText":
        """This text: alone it is all that a site has approved."""
        return self

    def chosen(self, stated: str, app: str) -> "ApprovedText":
        """Return the text under which a message is answered: this one.

        Args:
            stated: The sha256 of federation.toml that the message states, empty for another app than FedSkew's.
            app: The hash of the app that came with it.

        Raises:
            TextNotApproved: another text, or one that cannot be answered.
            NotApproved: another app.
        """
        if stated and self.federation and stated != self.federation:
            raise TextNotApproved(
                f"federation.toml {stated[:SHOWN]} is not approved at this site, which has approved "
                f"{self.federation[:SHOWN]}: agree on one text, and start the run again"
            )
        if self.refusal:
            raise TextNotApproved(self.refusal)
        if app != self.app:
            raise NotApproved(f"the app {app[:SHOWN]} is not approved at this site")
        return self


MakeCode = Callable[[Site, Mapping[str, bytes], Path], tuple[App, Describe | None]]
"""(site under a text, the app's files, folder for a copy of another app) -> what a worker runs and describes."""


class WatchedApproval:
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
        self.stamp = stamp_of(self.folder / RECORD)
        files = approved_files(site)
        self.loaded = site_packages(files)
        """The sources that this process answers with, by name."""
        self.current = self.text(site, files)

    def chosen(self, stated: str, app: str) -> ApprovedText:
        """Return the text under which a message is answered, as `ApprovedText.chosen` of what is approved by now.

        Raises OSError where the audit log cannot be written.
        """
        stamp = stamp_of(self.folder / RECORD)
        if stamp != self.stamp:
            self.stamp = stamp
            self.take_over()
        return self.current.chosen(stated, app)

    def take_over(self) -> None:
        """Make what is approved the current text, once it is complete."""
        try:
            approved = read_approval(self.folder)
        except DataError as error:
            # It is being written at this moment: its last file changes the stamp once more.
            logger.info("the approval stays as it was: %s", error)
            return
        try:
            self.site = self.checked_site(approved)
            self.current = self.text(self.site, approved.files)
        except DataError as error:
            logger.error("start the site again: the new approval cannot be taken over: %s", error)
            name = f"federation.toml {approved.sha256[:SHOWN]}"
            refusal = f"this site has approved {name} and has to be started again for it"
            self.current = ApprovedText(approved.sha256, approved.app, refusal=refusal)
        logger.info("approved now: federation.toml %s", self.current.federation)
        self.site.audit.write("taken over", **self.entry())

    def checked_site(self, approved: StoredApproval) -> Site:
        """Return the site as site.toml says now, which `approve` has shown, under a new text.

        Raises DataError where this process cannot go on as that site: with another state, another kind of app, or code
        that is not installed or was not loaded when this process began.
        """
        site = read_site(self.file, approved.agreement)
        is_same = site.state == self.site.state and (site.app is None) == (self.site.app is None)
        if not is_same:
            raise DataError("has another state, or another kind of app", where=str(self.file))
        name = str(approved.folder / APP)
        check_can_run(site, approved.files, name)
        if site.app is None and site_packages(approved.files) != self.loaded:
            raise DataError("is not the release that this process was started with", where=name)
        return site

    def text(self, site: Site, files: Mapping[str, bytes]) -> ApprovedText:
        """Return an approved text, ready to answer. Raises DataError as `make_code`."""
        code, describe = self.make_code(site, files, site.state / "app")
        return ApprovedText(site.agreement.sha256, app_hash(files), code, describe)

    def entry(self) -> dict[str, Any]:
        """Return what the audit log says of the text."""
        return {"app": self.current.app, "federation": self.current.federation}


def site_packages(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the sources of an app's packages that run at a site, by name."""
    return {
        name: canonical(content)
        for name, content in files.items()
        if name.partition("/")[0] in SITE_PACKAGES and name.endswith(".py")
    }
