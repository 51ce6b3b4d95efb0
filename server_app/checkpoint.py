"""A run's checkpoint: model, every method's state and what else a resume needs, in one file replaced in one step."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError, safe_open

from client_app.memory import write_atomically
from client_app.state import State, split_prefix, with_prefix

FORMAT = 1


class BrokenCheckpoint(RuntimeError):
    """The file is no checkpoint, or not a whole one."""


@dataclass(frozen=True)
class Checkpoint:
    """A run after `round`."""

    round: int
    shared: State
    states: dict[str, State]
    """Of every server method, and the answers to questions, by part."""
    deployed: dict[str, State]
    memory_rounds: dict[int, int] = field(default_factory=dict)
    """Client -> round of its last update that was used."""

    def save(self, path: Path) -> None:
        """Write the checkpoint; whoever reads sees this one or the one before."""
        tensors = with_prefix("shared", self.shared)
        for part, state in self.states.items():
            tensors |= with_prefix(f"state/{part}", state)
        for name, state in self.deployed.items():
            # a deployed model shares most tensors with the average; only its own are written
            own = {n: t for n, t in state.items() if t is not self.shared.get(n)}
            tensors |= with_prefix(f"deployed/{name}", own)
        told = {
            "format": FORMAT,
            "round": self.round,
            "memory-rounds": self.memory_rounds,
            "parts": list(self.states),
            "deployed": list(self.deployed),
        }
        write_atomically(path, tensors, {"fedskew": json.dumps(told)})

    @staticmethod
    def load(path: Path) -> "Checkpoint":
        """Read a checkpoint. Raises BrokenCheckpoint, naming the file."""
        try:
            with safe_open(path, "pt") as file:
                told = json.loads(file.metadata()["fedskew"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise BrokenCheckpoint(f"{path} is not a whole checkpoint, start with fresh = true: {error}") from error
        if told["format"] != FORMAT:
            raise BrokenCheckpoint(f"{path} has format {told['format']}, not {FORMAT}: start with fresh = true")
        kinds = split_prefix(tensors)
        shared = kinds.get("shared", {})
        states = split_prefix(kinds.get("state", {}))
        deployed = split_prefix(kinds.get("deployed", {}))
        return Checkpoint(
            round=told["round"],
            shared=shared,
            states={part: states.get(part, {}) for part in told["parts"]},
            deployed={name: {**shared, **deployed.get(name, {})} for name in told["deployed"]},
            memory_rounds={int(client): round for client, round in told["memory-rounds"].items()},
        )
