"""A message to the sites that are installed in this process, answered as one of them answers it."""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from flwr.app import Context, RecordDict

from client_app.app import app
from client_app.messages import handing_over
from client_app.models import build
from client_app.state import State
from fedskew.engines.local import identify
from server_app.run_settings import RunSettings
from strategies.core.exchange import EVALUATE, QUERY, TRAIN, Request
from strategies.core.rounds import Rounds
from strategies.fedavg import FedAvg

NOTHING: Mapping[str, Any] = MappingProxyType({})


def shared_of(settings: RunSettings) -> State:
    """Return the weights that a run begins with."""
    model = build(settings.general.model, (1, 8, 8), 3, 0, settings.model)
    return Rounds(model, settings.run_spec(), clients=3, combine=FedAvg()).shared


def answer(
    settings: RunSettings,
    shared: State,
    kind: str = TRAIN,
    clients: Sequence[int] = (0,),
    question: str = "readiness",
    run_spec: Mapping[str, Any] | None = None,
    fields: Mapping[str, Any] = NOTHING,
    states: Mapping[str, State] | None = None,
) -> RecordDict:
    """Return the content of the reply to a message about clients.

    Args:
        settings: of the run.
        shared: the weights that are sent.
        kind: of the message.
        clients: the sites' numbers.
        question: of a QUERY.
        run_spec: what the message says of the run; else what the settings say.
        fields: what its record "task" says instead.
        states: what is sent in place of `shared`.
    """
    is_bare = kind == QUERY and question == "readiness"
    if states is None:
        states = {"model": {} if is_bare else shared}
        if kind == EVALUATE:
            states = {"deployed/average": shared}
    text = settings.run_spec().to_json() if run_spec is None else json.dumps(run_spec)
    task: dict[str, int | str] = {"round": 1, "question": question}
    identify()
    with handing_over():
        message = Request(kind, task, states, text, {}).messages({1: tuple(clients)})[0]
        message.content.config_records["task"].update(fields)
        message.metadata.__dict__["_message_id"] = "1"
        context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
        return app(message, context).content
