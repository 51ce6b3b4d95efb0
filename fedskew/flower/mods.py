"""FedBN and SiloBN as Flower mods: around an app with its own training loop, of which no line changes."""

from collections.abc import Callable

from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import nn

from client_app.training import private_names
from fedskew.flower.records import (
    BATCH_NORM,
    FLAT,
    MEMORY,
    PRIVATE,
    UPLOAD,
    UPLOADS,
    config_of,
    model_record,
)
from fedskew.flower.variants import variants_of

Model = nn.Module | Callable[[], nn.Module]
"""A model, or what makes one."""


def fedbn_mod(model: Model) -> Mod:
    """Return a mod that keeps all that batch-norm layers own on the client (FedBN).

    Use it as `ClientApp(mods=[fedbn_mod(Net)])`, so that training and evaluation both see the client's own batch norm.
    Its weights, statistics and counters go back to the server as they came. In a list of mods it comes after privacy
    mods: these then see nothing of what is kept.

    Args:
        model: the model or its class; layers are found by their type.

    Raises:
        ValueError: the model has no batch norm.
    """
    return keep_private(model, "fedbn")


def silobn_mod(model: Model) -> Mod:
    """Return a mod that keeps batch norm's statistics and counters on the client and shares its weights (SiloBN).

    Use it as `fedbn_mod`. Raises ValueError where the model has no batch norm.
    """
    return keep_private(model, "silobn")


def keep_private(model: Model, method: str) -> Mod:
    """Return a mod that exchanges the tensors which a method keeps on the client."""
    example = model if isinstance(model, nn.Module) else model()
    private = private_names(example, variants_of([method]))
    if not private:
        raise ValueError(f"{method} keeps batch norm on the client, and the model has none")

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if not message.content.array_records:
            return call_next(message, context)
        key, received = model_record(message)
        uploads = config_of(message).get(UPLOADS, [])
        if FLAT in received:
            raise ValueError(
                f"{method}'s mod keeps tensors by name, and the server sends flat_arrays: start with "
                f"ArrayRecord(model.state_dict()), or use local_round(..., variants=[{method!r}])"
            )
        kept = context.state.array_records.get(MEMORY + PRIVATE, ArrayRecord())
        own_model = {name: kept.get(name, array) for name, array in received.items()}
        message.content[key] = ArrayRecord(own_model)
        reply = call_next(message, context)
        if reply.has_error() or key not in reply.content.array_records:
            return reply  # as an evaluation's, which has metrics alone

        keeping, sending = {}, {}
        for name, array in reply.content.array_records[key].items():
            if name in private:
                keeping[name] = array
                sending[name] = received[name]
            else:
                sending[name] = array
        context.state[MEMORY + PRIVATE] = ArrayRecord(keeping)
        reply.content[key] = ArrayRecord(sending)
        if BATCH_NORM in uploads:
            reply.content[UPLOAD + BATCH_NORM] = ArrayRecord(keeping)
        return reply

    return mod
