"""Many sites in one process, for load: each speaks a SuperNode's protocol in a thread of its own.

    python deploy/light_sites.py SITES-FOLDER

SITES-FOLDER has a folder with site.toml, key and data for every site, as `fedskew-site start` takes it. Keys, TLS,
messages and objects are those of flwr's SuperNode; what is left out are the processes of a site. One lock is around the
computation, as the sites' models share this process. Ends with SIGTERM.
"""

import secrets
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from flwr.app import Message
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supernode.fleet_http_connection import http_request_response

from client_app.messages import NONCE_BYTES, folded, unfolded
from fedskew.engines.local import handle
from site_agent.config import read_link, read_sites
from site_agent.data_view import install
from site_agent.keys import read_key

COMPUTING = threading.Lock()


def received_message(
    tree: ObjectTree,
    run: int,
    pull: Callable[[int, str], bytes],
    confirm: Callable[[int, str], None],
) -> Message:
    """Return a message with its content, whose objects are fetched and confirmed."""
    names = [part.object_id for part in iterate_object_tree(tree)]
    contents = pull_objects(names, lambda name: pull(run, name))
    confirm(run, tree.object_id)
    message = inflate_object_from_contents(tree.object_id, contents)
    assert isinstance(message, Message)
    # An object does not contain its own name.
    message.metadata.__dict__["_message_id"] = tree.object_id
    message.content = unfolded(message.content)
    return message


def be_site(folder: Path, stopping: threading.Event) -> None:
    """Take part as one site until `stopping` is set."""
    link = read_link(folder / "site.toml").link
    key = read_key(link.key)
    connection = http_request_response(
        link.address,
        insecure=False,
        root_certificates=link.ca.read_bytes(),
        authentication_keys=(key, key.public_key()),
    )
    with connection as (_, receive, send, _, _, pull, push, confirm):
        while not stopping.is_set():
            given = receive()  # the question is held until there is a message
            if given is None:
                continue
            about, tree = given
            run = about.metadata.run_id
            message = received_message(tree, run, pull, confirm)
            with COMPUTING:
                reply = handle(message)
                if reply.has_content():
                    reply.content = folded(reply.content, secrets.token_bytes(NONCE_BYTES))
                reply.metadata.__dict__["_message_id"] = reply.object_id
                with no_object_id_recompute():
                    reply_tree = get_object_tree(reply)
                    objects = get_all_nested_objects(reply)
            names, session = send(reply, reply_tree, 0.0)

            def push_object(
                name: str, content: bytes, run: int = run, session: str = session
            ) -> None:
                push(run, session, name, content)

            push_objects(objects, push_object, object_ids_to_push=names)


def main() -> None:
    """Be all sites of a folder."""
    folder = Path(sys.argv[1])
    # The run config, and with it the run's signature, is not among what these threads fetch.
    install(read_sites(folder), signed_runs=False)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.set())
    for file in sorted(folder.glob("*/site.toml")):
        thread = threading.Thread(target=be_site, args=(file.parent, stopping), daemon=True)
        thread.start()
    stopping.wait()


if __name__ == "__main__":
    main()
