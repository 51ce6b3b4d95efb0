"""Attacks by own models and methods: code that the sites have not agreed to, and files that change.

The honest request names a method of a module whose sha256 federation.toml has, and the site trains with its own copy.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from attacks.by_the_coordinator import BAD, answered, ask, refused
from attacks.stage import ALONE, Attack, Refusal, Stage, Succeeded
from client_app import user_code
from site_agent.config import Site

SOURCE = """
from dataclasses import dataclass
from typing import ClassVar

from fedskew.methods import Proximal, Variant


@dataclass(frozen=True)
class Plain(Variant):
    name: ClassVar[str] = "plain-own"
"""
WHO_WRITES = "who can write the site's files"


class OwnCode:
    """A module that a federation agrees on, and a site's copy of it in a folder of the attack's own."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage, self.name = stage, name
        self.folder = stage.federation.work / "own-code"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file = self.folder / f"{name}.py"
        self.file.write_text(SOURCE)
        self.marker = self.folder / f"{name}-ran"

    @property
    def hostile(self) -> str:
        """Source that leaves a mark when it runs."""
        return f"import os\nos.mkdir({str(self.marker)!r})\n{SOURCE}"

    def policy(self, site: Site) -> Site:
        """Return the site with the module in its agreement, and its copy in site.toml."""
        code = hashlib.sha256(SOURCE.encode()).hexdigest()
        agreement = replace(site.agreement, module=self.name, module_sha256=code)
        return replace(site, agreement=agreement, module=self.file)

    def asked(self, *names: str, seed: int = 1) -> dict[str, Any]:
        """Return a request to train with local methods of these names; another seed is another run."""

        def change(entries: dict[str, Any]) -> None:
            entries["variants"] = {name: {} for name in names or (f"{self.name}:Plain",)}
            entries["seed"] = seed

        return {"change": change, "policy": self.policy}

    def refused(self, *names: str, seed: int = 1) -> list[Refusal]:
        """Return how the site refuses such a request. Raises Succeeded where the hostile source has run."""
        refusals = refused(self.stage, **self.asked(*names, seed=seed))
        self.check_not_run()
        return refusals

    def check_not_run(self) -> None:
        """Raise Succeeded where the hostile source has run."""
        if self.marker.exists():
            raise Succeeded("the changed source has run")


def agreed_module(name: str) -> Callable[[Stage], str]:
    """Return the honest request: train with a method of the agreed module."""
    return lambda stage: answered(stage, "model", **OwnCode(stage, name).asked())


def other_hash(stage: Stage) -> list[Refusal]:
    """Let the site's file be another one than the agreed."""
    own = OwnCode(stage, "agreed_file")
    own.file.write_text(own.hostile)
    return own.refused(seed=2)


def changed_after_the_check(stage: Stage) -> list[Refusal]:
    """Change the site's file in the moment in which its bytes are compared, and ask again for another run."""
    own = OwnCode(stage, "agreed_swapped")

    def compared(content: bytes) -> Any:
        own.file.write_text(own.hostile)
        return hashlib.sha256(content)

    before = user_code.hashlib
    user_code.hashlib = SimpleNamespace(sha256=compared)  # type: ignore[assignment]
    try:
        content, _ = ask(stage, **own.asked())
    finally:
        user_code.hashlib = before
    own.check_not_run()
    if own.file.read_text() != own.hostile or "0/model" not in content:
        raise Succeeded(
            f"the file was not changed in between: the reply holds {', '.join(content)}"
        )
    same = Refusal("the compared bytes", "the site has trained with the bytes that were compared")
    return [same, *own.refused(seed=2)]


def code_in_the_message(stage: Stage) -> list[Refusal]:
    """Name other modules, source text, and what the agreed module has imported, in place of its own classes."""
    own = OwnCode(stage, "agreed_named")
    source = f"__import__('os').mkdir({str(own.marker)!r})"
    refusals = []
    for name in ("os:system", source, f"{own.name}:Proximal"):
        refusals += own.refused(name)
    return refusals


def excluded(stage: Stage) -> list[Refusal]:
    """Ask for a method of the agreed module, at a site whose policy lists others."""
    own = OwnCode(stage, "agreed_excluded")
    own.file.write_text(own.hostile)  # the policy is asked before the file is read
    asked = own.asked()
    listed = asked.pop("policy")
    refusals = refused(
        stage, policy=lambda site: replace(listed(site), methods=("logit-shift",)), **asked
    )
    own.check_not_run()
    return refusals


def listed_method(stage: Stage) -> str:
    """Ask the same of a site whose policy lists the method."""
    own = OwnCode(stage, "agreed_listed")
    asked = own.asked()
    policy = asked.pop("policy")
    methods = (f"{own.name}:Plain",)
    return answered(
        stage, "model", policy=lambda site: replace(policy(site), methods=methods), **asked
    )


ATTACKS = [
    Attack("another file than the agreed module's", WHO_WRITES, ALONE, agreed_module("agreed_control"), other_hash,
           (Refusal("DataError", "has sha256"),)),
    Attack("the module's file changed between check and load", WHO_WRITES, ALONE, agreed_module("agreed_unchanged"),
           changed_after_the_check,
           (Refusal("the compared bytes", "that were compared"), Refusal("DataError", "has sha256"))),
    Attack("code in a message, beside an agreed module", BAD, ALONE, agreed_module("agreed_clean"),
           code_in_the_message,
           (Refusal("NotAgreed", "os:system is the site's own affair"), Refusal("NotAgreed", "is not of this code"),
            Refusal("SettingError", "has no class of variants Proximal"))),
    Attack("a method of the agreed module that policy excludes", BAD, ALONE, listed_method, excluded,
           (Refusal("RunNotAllowed", "methods"),)),
]  # fmt: skip
