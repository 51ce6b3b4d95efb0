"""The files of a federation between sites: both agreements' TOML, a site's table, its audit log.

Other but plausible is an agreement, a site.toml or a table that keeps every rule of its kind and says something else:
the first is compared with what the site approved, the other two are its own. The audit log has no such case.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from harness import Subject, altered, mutated
from hypothesis import strategies as st
from site_files import CLASSES, agreed, site_entries

from data import DataError, DataSettings, SettingError
from data.agreement import read_agreement
from data.readers.splits import checked
from data.readers.tables import read_csv
from site_agent.audit import Audit
from site_agent.config import read_site

DATA = (DataError, SettingError)
TABLE = "age,score,label\n" + "".join(f"{k},{k / 7:.3f},{CLASSES[k % 3]}\n" for k in range(30))


def as_toml(entries: Any) -> bytes:
    """Return what TOML can say of changed entries: no null, and a table at the top."""
    if not isinstance(entries, dict):
        return str(entries).encode()
    try:
        return tomli_w.dumps(
            {str(key): value for key, value in entries.items() if value is not None}
        ).encode()
    except (TypeError, ValueError, AttributeError):
        return repr(entries).encode()


def site_subjects(root: Path) -> list[Subject]:
    """federation.toml and site.toml with changed bytes and contents; a csv file and an audit log with changed bytes."""

    def federation(arrived: bytes, folder: Path) -> Any:
        (folder / "federation.toml").write_bytes(arrived)
        agreement = read_agreement(folder / "federation.toml")
        return (
            agreement.name,
            agreement.classes,
            agreement.min_sites,
            [(site.name, site.key) for site in agreement.sites],
        )

    def site(arrived: bytes, folder: Path) -> Any:
        (folder / "federation.toml").write_bytes(as_toml(agreed()))
        (folder / "data.npz").write_bytes(b"")
        (folder / "site.toml").write_bytes(arrived)
        said = read_site(folder / "site.toml")
        return said.name, said.number, sorted(said.allow), said.device, said.threads, said.max_norm

    def table(arrived: bytes, folder: Path) -> Any:
        (folder / "own.csv").write_bytes(arrived)
        raw = read_csv(folder / "own.csv", tuple(CLASSES), (1,), DataSettings())
        splits = [checked(split, (2,), 3) for split in (raw.train, raw.test)]
        return [(np.asarray(inputs).tolist(), labels.tolist()) for inputs, labels in splits]

    def vectors(splits: Any) -> bool:
        """Return whether a model of three classes can be trained on it."""
        return all(
            np.isfinite(inputs).all() and len(inputs) == len(labels) and {*labels} <= {0, 1, 2}
            for inputs, labels in splits
        )

    log = Audit(root / "audit.jsonl")
    for number in range(4):
        log.write("answered", kind="train", round=number)
    files = {file.name: file.read_bytes() for file in (log.path, log.last)}

    def audit(arrived: dict[str, bytes], folder: Path) -> Any:
        for name, content in arrived.items():
            (folder / name).write_bytes(content)
        return Audit(folder / log.path.name).verify()

    changed = st.sampled_from(sorted(files)).flatmap(
        lambda name: mutated(files[name]).map(lambda c: {**files, name: c})
    )
    return [
        *toml_subjects("federation.toml", agreed(), federation, root),
        *toml_subjects(
            "site.toml", site_entries(policy={"allow": ["model"], "max-norm": 2.5}), site, root
        ),
        Subject("csv", mutated(TABLE.encode()), table, table(TABLE.encode(), root), DATA, vectors),
        Subject("audit log", changed, audit, 4, DATA),
    ]


def toml_subjects(
    name: str, entries: Any, read: Callable[[bytes, Path], Any], root: Path
) -> list[Subject]:
    """Return the subjects of a TOML file: changed bytes, and changed contents."""
    whole, by_hand = as_toml(entries), altered(entries).map(as_toml)
    read_whole = lambda result: True  # noqa: E731  whatever is read keeps each key's rule
    return [
        Subject(name, mutated(whole), read, read(whole, root), DATA, read_whole),
        Subject(f"{name}, contents", by_hand, read, read(whole, root), DATA, read_whole),
    ]
