"""The bytes that variants declare for their uploads are those that real clients send."""

from pathlib import Path
from typing import Any

import pytest
from flwr.app import RecordDict
from in_process import TamperingGrid, experiment, small

from client_app.messages import unpack
from client_app.models import build
from client_app.state import size
from client_app.variants.feature_gradients import FeatureGradients
from data import federate
from server_app.methods import METHODS


@pytest.mark.parametrize("method", METHODS)
def test_uploads_of_a_real_run_have_the_declared_bytes(tmp_path: Path, method: str) -> None:
    """An upload whose bytes are not declared, in training or as an answer, fails here: for every method."""
    heard: dict[str, dict[str, int]] = {}

    def hear(asked: Any, records: RecordDict) -> None:
        for name, record in records.array_records.items():
            client, _, upload = name.partition("/upload/")
            if upload:
                heard.setdefault(upload, {})[client] = size(unpack(record))

    changes = {"method": method, "local_epochs": 1, "train_images": 120, "test_images": 20}
    settings = small(tmp_path, **changes)
    experiment(tmp_path, TamperingGrid(hear), **changes)
    held_K = (federate(settings.data, settings.general.seed).counts_KC > 0).sum(1).tolist()
    model = build(settings.general.model, (1, 8, 8), 10, 0)
    declared = {}
    for variant in settings.variants:
        uploads = {
            str(client): variant.upload.bytes(model, held) for client, held in enumerate(held_K)
        }
        if any(uploads.values()):
            declared[variant.name] = uploads
    assert heard == declared


def test_classes_per_round_bound_the_gradients() -> None:
    model = build("mlp-bn", (1, 8, 8), 10, 0)
    row, bounded = 8 + 4 * model.head.weight.numel(), FeatureGradients(classes_per_round=2)
    assert [bounded.upload.bytes(model, held) for held in (1, 2, 9)] == [row, 2 * row, 2 * row]
