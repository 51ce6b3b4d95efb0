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
    """Join the tensors that all sites share with those that this site keeps, and return the model's file.

    `fedskew predict` reads it as any exported model; nothing of it leaves the site.

    Args:
        site: this site.
        shared: a file of `fedskew export`, or its folder.
        output: the folder to write.

    Raises:
        DataError: a file that is no exported model or is complete already, or this site has no memory of its run.
    """
    source = shared / MODEL_FILE if shared.is_dir() else shared
    target = output / MODEL_FILE
    try:
        tensors, text = read(source, {KIND: "model"})
    except Damaged as error:
        raise DataError(str(error)) from None
    if not {"run", KEPT} <= text.keys():
        reason = "is whole as it is, or not one of `fedskew export`: no site keeps a part of it"
        raise DataError(reason, where=str(source))
    if target.resolve() == source.resolve():
        raise DataError(f"must be another folder than that of {source}", where=str(output))
    try:
        round, code = json.loads(text[KEPT])[site.name]
        folder = folder_of(site.run_folder(text["run"]), site.number)
        memory = load_memory(folder, int(round), expected_digest=str(code))
    except KeyError:
        reason = f"{site.name} has trained in no round of {text['run']} that counts"
        raise DataError(reason, where=str(source)) from None
    except (Damaged, MemoryLost) as error:
        raise DataError(str(error)) from None
    except (ValueError, TypeError, OverflowError, RecursionError):  # int(inf) overflows
        reason = f"its metadata {KEPT} names no memory of a site"
        raise DataError(reason, where=str(source)) from None
    private = memory.get("private", {})
    metadata = {**text, **reading_of(site), "site": site.name}
    del metadata[KEPT]
    write_atomically(target, {**tensors, **private}, metadata)
    return target


def reading_of(site: Site) -> dict[str, str]:
    """Return how the site's data are read, [read] of its site.toml, as metadata of a model that is to read the same."""
    metadata = {}
    for field in OF_OWN:
        if field == "labels":  # a path at the hospital; a model needs no labels to be used
            continue
        if not site.reading.is_default(field):
            value = getattr(site.reading, field)
            metadata[DataSettings.key(field)] = str(value)
    return metadata
