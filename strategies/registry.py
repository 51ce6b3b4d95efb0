"""The registry of server methods: one file each, found in this folder."""

import strategies
from client_app.discovery import parts_in
from strategies.core.server import ServerMethod

SERVER_METHODS: dict[str, type[ServerMethod]] = parts_in(strategies, ServerMethod)
