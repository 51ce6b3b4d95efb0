"""The app's default actions: flwr's own protocol, with the data that the node's configuration names."""

from pathlib import Path
from typing import Any

import pytest
from fake_grid import FakeGrid
from flwr.app import ConfigRecord, Message, RecordDict

from client_app.app import app
from client_app.local_site import NotAgreed, install
from client_app.models import build
from client_app.runtime import initial_seed
from data import SettingError
from fedskew.flower.records import to_record
from server_app.settings import defaults
from site_agent.config import read_site
from site_agent.data_view import install as install_sites
from tests.site_files import site_folders

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
PARTITION = {"partition-id": 0, "num-partitions": 4}


def reply_of(kind: str, node_config: dict[str, Any]) -> Message:
    """Return the app's reply to one message of a run of flwr's own protocol."""
    config = {
        **defaults(),
        "readiness": "",
        "protocol": "plain",
        "method": "fedavg",
        "model": "mlp-bn",
        "dataset": "digits",
    }
    grid = FakeGrid(app, 1, config)
    (node,) = grid.nodes
    grid.contexts[node].node_config = node_config
    arrays = to_record(build("mlp-bn", (1, 8, 8), 10, initial_seed(0)).state_dict())
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": 1})})
    reply = grid.answer(Message(content, dst_node_id=node, message_type=kind))
    if grid.errors:
        raise grid.errors[0]
    return reply


def test_fedskews_own_messages_refuse_a_node_with_data_of_its_own() -> None:
    with pytest.raises(SettingError) as refused:
        reply_of("train.clients", {"data-path": "/srv"})
    assert refused.value.key == "data-path"


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
def test_a_site_answers_fedskews_own_messages_alone(kind: str, tmp_path: Path) -> None:
    folder = site_folders(tmp_path / "sites")
    install_sites({0: read_site(folder / "north/site.toml")})
    try:
        with pytest.raises(NotAgreed):
            reply_of(kind, PARTITION)
    finally:
        install({})
    if kind != "query":
        assert reply_of(kind, PARTITION).has_content(), "no site answers flwr's own messages"
