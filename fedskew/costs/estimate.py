"""The remaining cost of a run: seconds, bytes of disk, memory and messages."""

from dataclasses import dataclass

from client_app.messages import size
from client_app.training import private_names
from fedskew.costs.footprint import (
    disk_of,
    down_of,
    memory_of,
    model_of,
    participants,
    parts_of,
    server_of,
    up_of,
)
from fedskew.costs.pace import Pace
from fedskew.costs.sizes import Sizes, mean_steps
from server_app.run_folder import RunFolder
from server_app.run_settings import RunSettings


@dataclass(frozen=True)
class Cost:
    """What a run takes from where it stands."""

    left: int
    """Rounds."""
    seconds: float
    disk: float
    """Bytes of its folder when it is finished."""
    down: float
    """Bytes from the server to clients."""
    up: float
    """Bytes from clients to the server."""
    memory_bytes: float
    """Bytes."""


def rounds_left(settings: RunSettings) -> int:
    """Return the rounds that a run has to go."""
    done = 0 if settings.general.overwrite else len(RunFolder(settings.folder).rounds())
    return settings.general.rounds - done


def cost_of(settings: RunSettings, sizes: Sizes, pace: Pace, workers: int = 1) -> Cost:
    """Return a run's cost, its clients played by so many processes."""
    left, taking, clients = rounds_left(settings), participants(settings), settings.data.clients
    model = model_of(settings)
    by_clients = bool(private_names(model, settings.variants)) or sizes.own_tests
    at_once, testing = min(workers, taking), min(workers, clients) if by_clients else 1
    seconds = (
        left * (pace.clients / at_once + pace.server)
        + evaluations(settings, left) * pace.evaluation / testing
    )
    up, answers = up_of(settings, sizes)
    questions = sum(variant.upload.once for variant in settings.variants)
    return Cost(
        left=left,
        seconds=seconds + (pace.once if left else 0.0),
        disk=disk_of(settings, 0 if by_clients else sizes.test),
        down=left * taking * down_of(settings)
        + (left > 0) * questions * clients * size(server_of(settings).start),
        up=left * taking * up + (left > 0) * clients * answers,
        memory_bytes=memory_of(settings, sizes),
    )


def work_of(settings: RunSettings, sizes: Sizes) -> float:
    """Return the samples that clients and server still have to pass through the model.

    That is enough to tell a long run from a short one of the same data, before anything is measured.
    """
    taking, training, model = participants(settings), settings.training, model_of(settings)
    server = sum(
        part.work(model, sizes.holdout, taking, training).samples for part in parts_of(settings)
    )
    return rounds_left(settings) * (
        taking * mean_steps(training, sizes) * training.batch_size + server
    )


def evaluations(settings: RunSettings, left: int) -> int:
    """Return how many of the rounds that are left are evaluated."""
    every, rounds = settings.general.evaluate_every, settings.general.rounds
    return sum(
        1
        for round in range(rounds - left + 1, rounds + 1)
        if round == rounds or (every and round % every == 0)
    )
