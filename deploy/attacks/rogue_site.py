"""`fedskew-site start` of a hospital that trains honestly, and answers for another one in every reply as well."""

from typing import Any

from flwr.app import ArrayRecord

from site_agent import executor
from site_agent.cli import main

genuine = executor.push_message


def push(client: Any, reply: Any, context: Any) -> None:
    """Push the reply, with its model once more as that of client 0."""
    if reply.has_content():
        for name, record in list(reply.content.items()):
            if name.endswith("/model") and isinstance(record, ArrayRecord):
                reply.content["0/model"] = record
    genuine(client, reply, context)


executor.push_message = push

if __name__ == "__main__":
    main()
