"""The server side of methods: one file each, known by being here. How updates become a model, and what is deployed."""

import sys

from client_app.client import parts_in
from strategies.core.server import ServerMethod

SERVER_METHODS: dict[str, type[ServerMethod]] = parts_in(sys.modules[__name__], ServerMethod)
