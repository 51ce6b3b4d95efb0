"""The hashes of a finished run: equal ones mean that two runs have the same numbers to the bit."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor

from client_app.memory import folder_of
from client_app.memory import load as load_memory
from client_app.state import State, digest, with_prefix
from strategies.core.rounds import Rounds
from strategies.core.server import AVERAGE, ServerMethod


def head_hashes(
    deployed: Mapping[str, State], deploys: Iterable[ServerMethod]
) -> dict[str, dict[str, str]]:
    """Return for the summary a hash of each model with a head in closed form; nothing where there is none."""
    heads = {method.name for method in deploys if method.closed_form}
    digests = {name: digest([state]) for name, state in deployed.items() if name in heads}
    if not digests:
        return {}
    return {"model-hashes": digests}


def hashes(strategy: Rounds, run_folder: Path) -> dict[str, str | None]:
    """Return the run's hashes: one for shared, deployed and client memory together, and one for each.

    Where a client keeps its memory on another machine, the digests that came with the updates stand for it: the
    same in every run of the same sites, and another hash than over the memory itself. None where one is missing.
    """
    shared = [strategy.shared]
    deployed = []
    for name, state in sorted(strategy.deployed.items()):
        if name != AVERAGE:
            deployed.append(with_prefix(name, state))

    memory: dict[str, Tensor] = {}
    words: list[str] = []
    complete = True
    clients = sorted(strategy.memory_rounds)
    folders = [folder_of(run_folder, client) for client in clients]
    if all(folder.exists() for folder in folders):
        for client, folder in zip(clients, folders, strict=True):
            kept = load_memory(folder, strategy.memory_rounds[client])
            for part, state in kept.items():
                memory |= with_prefix(f"{client}/{part}", state)
    else:
        digests = strategy.digests["memory"]
        words = [f"{client} {digests.get(client, '')}" for client in clients]
        complete = all(client in digests for client in clients)
    return {
        "all": digest([*shared, *deployed, memory], *words) if complete else None,
        "shared": digest(shared),
        "deployed": digest(deployed),
        "memory": digest([memory], *words) if complete else None,
    }
