"""How the server reaches its clients. Apart from exchange.py, as settings are read without flwr."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le

from data import Settings


@dataclass(frozen=True)
class ExchangeSettings(Settings):
    """How the server reaches its clients."""

    nodes: Annotated[int, Ge(1), Le(1_000_000)] = 1
    """Connected nodes to wait for before a round; in a simulation any node runs any client."""
    node_wait: Annotated[float, Ge(0)] = 90.0
    """Seconds to wait for the nodes; then the run fails. flwr refuses a killed node's successor for up to 60 s."""
    timeout: Annotated[float, Gt(0)] = 3600.0
    """Seconds to wait for the replies of a round; the missing ones count as failures."""
    min_reply_share: Annotated[float, Gt(0), Le(1)] = 1.0
    """Share of the asked clients that must send a valid reply, 1 is all of them; with fewer the run stops and keeps its
    checkpoint. Between sites, min-sites of federation.toml replaces it."""
