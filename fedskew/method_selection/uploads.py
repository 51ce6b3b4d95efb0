"""What methods upload beside the model, by the permission that a site must give for it."""

from collections.abc import Collection, Mapping, Sequence

from client_app.local_site import PERMISSIONS
from data import require
from server_app.composition import compose
from server_app.methods import METHODS
from server_app.run_settings import RunSettings

ALWAYS = ("model", "scores")
"""What every method needs."""


CONTAINS = {"class-statistics": "class-counts"}
"""What an upload holds beside its own permission: what is said of each class comes with its number of samples."""


def permissions_of(run: RunSettings) -> frozenset[str]:
    """Return the permissions that a run needs beside those of every run, as its variants declare them.

    With class statistics and class predictions come class counts.
    """
    declared = {variant.upload.permission for variant in run.variants} - {""}
    contained = {CONTAINS[name] for name in declared if name in CONTAINS}
    return frozenset(declared | contained)


def excluded(words: Sequence[str]) -> frozenset[str]:
    """Return the permissions of `--without`. Raises SettingError for one that is none, or that every run needs."""
    optional = [name for name in PERMISSIONS if name not in ALWAYS]
    for word in words:
        require(word in optional, "--without", word, f"must be some of {', '.join(optional)}")
    return frozenset(words)


def permitted(
    runs: Mapping[str, RunSettings], without: Collection[str]
) -> tuple[dict[str, RunSettings], list[str]]:
    """Return the methods that need none of these permissions, and the names of the others."""
    allowed: dict[str, RunSettings] = {}
    left_out: list[str] = []
    for method, run in runs.items():
        if permissions_of(run) & frozenset(without):
            left_out.append(method)
        else:
            allowed[method] = run
    return allowed, left_out


def upload_text(method: str, head_start: str = "") -> str:
    """Return what a method uploads beside the model, as the list of methods has it; `nothing` where it does not.

    With `head_start` what that head in closed form asks for is among it.
    """
    names = list(compose(method).names)
    if head_start:
        names.append(head_start)
    texts = [METHODS[name].reveals for name in names]
    telling = [text for text in dict.fromkeys(texts) if text != "nothing"]
    return "; ".join(telling) or "nothing"
