"""The site's own files of the agreed module and of the backbone's weights: used only where their sha256 is agreed."""

from pathlib import Path

from client_app.local_site import NotAgreed
from client_app.models import is_own_model
from client_app.models.backbone import check_weights, sha256_of
from client_app.run_spec import RunSpec
from client_app.user_code import read_agreed, source_text
from data import DataError, SettingError
from data.text import escaped
from site_agent.config import Site
from site_agent.policy import is_of_module


def check_model(site: Site, run_spec: RunSpec) -> None:
    """Raise NotAgreed for a model or weights of another package or file than the agreed module's or backbone's, and for
    principal components, which are those of all sites together.
    """
    agreement = site.agreement
    weights = run_spec.model_settings.weights
    if run_spec.model_settings.components:
        raise NotAgreed("components would be those of this site's own features")
    agreed = run_spec.model == agreement.backbone != ""
    own_model = is_own_model(run_spec.model) and is_of_module(run_spec.model, agreement.module)
    if own_model and not weights:
        return
    if agreed and weights in ("", agreement.weights_in_messages):
        return
    if weights or ":" in run_spec.model:
        raise NotAgreed(f"{weights or run_spec.model} is the site's own affair")


def own_weights(site: Site) -> str:
    """Return the path of the site's file of the agreed backbone's weights.

    Raises:
        DataError: site.toml names no file, there is none, or it is another one: both hashes are named.
    """
    agreement = site.agreement
    agreed = (
        f"federation.toml agrees on {agreement.backbone} with weights of sha256 {agreement.weights}"
    )
    if site.weights is None:
        raise DataError(f"is missing: {agreed}", where="site.toml", key="weights")
    file = str(site.weights)
    try:
        here = sha256_of(file)
        if here != agreement.weights:
            raise DataError(f"has sha256 {here}, and {agreed}", where=file)
        check_weights(agreement.backbone, file)
    except SettingError as error:
        raise DataError(f"{error.key}: {error.rule}", where=file) from None
    return file


def own_module(site: Site) -> tuple[bytes, Path]:
    """Return the bytes of the site's file of the agreed module, and the file. Raises DataError as `read_agreed`."""
    content = read_agreed(site.agreement, site.module, "site.toml")
    assert site.module
    return content, site.module


def module_lines(site: Site) -> list[str]:
    """Return the agreed module's name, hash and source, for the one who decides; nothing where none is agreed.

    Raises DataError as `own_module`, and for a source that is no text.
    """
    agreement = site.agreement
    if not agreement.module:
        return []
    text = source_text(*own_module(site))
    return [
        f"module      {agreement.module}, sha256 {agreement.module_sha256}: its code runs on this site's data, with "
        "the rights of this user. Read it:",
        *numbered(text),
    ]


def numbered(source: str) -> list[str]:
    """Return a source's lines with their numbers, and what a terminal would not show escaped.

    Python also ends a line at a lone carriage return, which a terminal shows by overwriting: it is escaped.
    """
    lines = source.replace("\r\n", "\n").split("\n")
    if not lines[-1]:
        lines.pop()
    numbered_lines = []
    for number, line in enumerate(lines, 1):
        # In ASCII: a letter of another script may look like one that Python reads differently.
        shown = line.expandtabs(8).encode("ascii", "backslashreplace").decode()
        numbered_lines.append(f"{number:>5}  {escaped(shown)}")
    return numbered_lines
