"""Server methods: one file each, known by being here."""

import strategies
from client_app.discovery import parts_in
from strategies.core.server import ServerMethod

SERVER_METHODS: dict[str, type[ServerMethod]] = parts_in(strategies, ServerMethod)
