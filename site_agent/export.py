"""`fedskew-site export`: joins a run's shared model with this site's own tensors, for its own use."""

import json
from pathlib import Path

from client_app.memory import KEPT, MemoryLost, folder_of
from client_app.memory import load as load_memory
from client_app.tensor_files import KIND, Damaged, read, write_atomically
from data import DataError, DataSettings
from data.settings import OF_OWN
from site_agent.config import Site

MODEL_FILE = "model.safetensors"


def export(site: Site, shared: Path, output: Path) -> Path:
    """Join what all sites share, a file of `fedskew export` or its folder, with what this site keeps; return the file.

    It is one of the same kind, which `fedskew predict` takes; nothing of it leaves. Raises DataError for a file that is
    no exported model, for one that is whole already, and where this site has no part in it, or has lost that.
    """
    source = shared / MODEL_FILE if shared.is_dir() else shared
    target = output / MODEL_FILE
    try:
        tensors, text = read(source, {KIND: "model"})
    except Damaged as error:
        raise DataError(str(error)) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", where=str(source)) from None
    if "run" not in text:
        raise DataError("is not one of `fedskew export`", where=str(source))
    if KEPT not in text:
        raise DataError("is whole as it is: no site keeps a part of it", where=str(source))
    if target.resolve() == source.resolve():
        raise DataError(f"must be another folder than that of {source}", where=str(output))
    folder = folder_of(site.run_folder(text["run"]), site.number)
    try:
        known = {
            name: (int(round), str(code)) for name, (round, code) in json.loads(text[KEPT]).items()
        }
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise DataError(
            f"its metadata {KEPT} names no memory of a site", where=str(source)
        ) from None
    if site.name not in known:
        raise DataError(
            f"{site.name} has trained in no round of {text['run']} that counts", where=str(source)
        )
    round, code = known[site.name]
    try:
        private = load_memory(folder, round, expected_digest=code).get("private", {})
    except (Damaged, MemoryLost) as error:
        raise DataError(str(error)) from None
    if both := tensors.keys() & private.keys():
        raise DataError(f"holds {min(both)}, which this site keeps for itself", where=str(source))
    about = {key: value for key, value in text.items() if key != KEPT}
    write_atomically(
        target, {**tensors, **private}, {**about, **reading_of(site), "site": site.name}
    )
    return target


def reading_of(site: Site) -> dict[str, str]:
    """Return how the site's data are read, [read] of its site.toml, as metadata of a model that is to read the same."""
    stated = [field for field in OF_OWN if not site.reading.is_default(field)]
    return {DataSettings.key(field): str(getattr(site.reading, field)) for field in stated}
