"""The registry of server methods: one file each, found in this folder."""

import sys

from client_app.discovery import parts_in
from strategies.core.server import ServerMethod

PACKAGE = __name__.rpartition(".")[0]
SERVER_METHODS: dict[str, type[ServerMethod]] = parts_in(sys.modules[PACKAGE], ServerMethod)
