"""What every part of a method declares: what it needs of a run, what it uploads, and when.

    python -m pytest tests/test_golden_parts.py
    PYTHONPATH=tests:. python tests/test_golden_parts.py    write the table anew, after a change that is meant

Sites grant permissions by these words, and a server refuses uploads by these shapes and bounds.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from client_app.client import Upload, Variant, affects_training
from client_app.models import build
from data import Settings
from server_app.composition import section_types
from strategies.core.server import ServerMethod

TABLE = Path(__file__).parent / "golden" / "parts.json"
MODEL = build("mlp-bn", (1, 4, 4), 4, 0)


def declared(kind: type[Variant] | type[ServerMethod]) -> dict[str, Any]:
    """Return what a part declares at its default settings, without what is empty, 0 or False."""
    part = kind()
    base = Variant if isinstance(part, Variant) else ServerMethod
    hints = get_type_hints(base).items() - get_type_hints(Settings).items()
    found = {name: getattr(part, name) for name, hint in hints if "ClassVar" in str(hint)}
    if isinstance(part, ServerMethod):
        found["needs_holdout"] = part.needs_holdout
    else:
        found |= {"proximal_mu": part.proximal_mu, "head_first": part.head_first}
        found["affects_training"] = affects_training(type(part))
        hooks = [name for name in vars(Variant) if hasattr(getattr(kind, name), "vectorizable")]
        found["vectorizable"] = hooks
        if part.upload != Upload():
            found |= of_upload(part.upload)
    return {key: written(value) for key, value in sorted(found.items()) if value}


def of_upload(upload: Upload) -> dict[str, Any]:
    """Return the fields of an upload, its tensors with their types, shapes and bounds."""
    found = {f"upload.{one.name}": getattr(upload, one.name) for one in fields(Upload)}
    found["upload.tensors"] = {
        name: f"{str(spec.dtype).removeprefix('torch.')} {list(spec.shape)} {spec.low} {spec.high}"
        for name, spec in upload.tensors(MODEL, MODEL.state_dict()).items()
    }
    return found


def written(value: Any) -> Any:
    """Return a declared value as the table has it. A function is true: there is one."""
    if isinstance(value, Mapping):
        return {key: str(one) for key, one in value.items()}
    if isinstance(value, list | frozenset):
        return ", ".join(sorted(value))
    return True if callable(value) else value


def test_every_part_declares_what_it_did() -> None:
    table = json.loads(TABLE.read_text())
    found = {name: declared(kind) for name, kind in section_types().items()}
    changed = {
        name: (table.get(name), one) for name, one in found.items() if one != table.get(name)
    }
    assert changed == {}, "(before, now)"
    assert found.keys() == table.keys()


if __name__ == "__main__":
    found = {name: declared(kind) for name, kind in section_types().items()}
    TABLE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
