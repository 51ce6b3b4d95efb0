"""`fedskew-site` of a hospital that trains honestly, and sends ten times its update."""

from flwr.app import ArrayRecord, Context, Message

import client_app.app
import site_agent.pool
from client_app.messages import kind_of, pack, unpack
from site_agent.cli import main

genuine = client_app.app.app


def hostile(message: Message, context: Context) -> Message:
    """Return the reply with ten times its update."""
    reply = genuine(message, context)
    if kind_of(message) != "train" or not reply.has_content():
        return reply
    received = unpack(message.content.array_records["model"])
    for name, record in list(reply.content.items()):
        if name.endswith("/model") and isinstance(record, ArrayRecord):
            state = unpack(record)
            for key, tensor in state.items():
                # Ten times a change of a variance may be negative, which is refused.
                if tensor.is_floating_point() and "running_" not in key:
                    state[key] = received[key] + 10 * (tensor - received[key])
            reply.content[name] = pack(state)
    return reply


def unseen(reply: Message, message: Message) -> site_agent.pool.Leaving:
    """Return what the site's log and policy are to believe, whatever the reply is."""
    return [
        {"name": name, "bytes": record.count_bytes(), "norm": 1.0}
        for name, record in reply.content.items()
    ]


client_app.app.app = hostile  # type: ignore[assignment]
site_agent.pool.leaving = unseen

if __name__ == "__main__":
    main()
