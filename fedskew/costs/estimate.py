"""What a run takes from where it stands: seconds, bytes of disk, memory and messages."""

from dataclasses import dataclass

from client_app.training import private_names
from fedskew.costs.footprint import (
    deploying_share,
    disk_of,
    down_of,
    memory_of,
    model_of,
    participants,
    parts_of,
    up_of,
)
from fedskew.costs.pace import Pace
from fedskew.costs.sizes import Sizes, mean_steps
from server_app.run_folder import RunFolder, rounds_run
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
    """Bytes from the server to clients in the rounds that are left."""
    up: float
    """Bytes from clients to the server, with their answers to questions that are asked once."""
    memory_bytes: float
    """Bytes of one process, without the libraries' code, which all processes share."""


def rounds_left(settings: RunSettings) -> int:
    """Return the rounds that a run has to go at most: patience may end it earlier.

    Of a run without rounds it is 1 until it has its record; of one that diverged 0, as it is not repeated.
    """
    rounds = settings.general.rounds
    if settings.general.overwrite:
        return max(rounds, 1)
    folder = RunFolder(settings.folder)
    if folder.divergence() is not None:
        return 0
    return max(rounds_run(folder.summary(), rounds), 1) - len(folder.rounds())


def cost_of(settings: RunSettings, sizes: Sizes, pace: Pace, workers: int = 1) -> Cost:
    """Return a run's cost, its clients run by so many processes."""
    left = rounds_left(settings)
    taking = participants(settings)
    clients = settings.data.clients
    # Clients that keep a part of the model, or have test samples of their own, measure it themselves.
    by_clients = bool(private_names(model_of(settings), settings.variants)) or sizes.own_tests
    disk = disk_of(settings) if by_clients else disk_of(settings, sizes.test, sizes.validation)
    memory = memory_of(settings, sizes)
    if not left:
        return Cost(0, 0.0, disk, 0.0, 0.0, memory)

    trained = min(left, settings.general.rounds)
    training_processes = min(workers, taking)
    testing_processes = min(workers, clients) if by_clients else 1
    round_seconds = pace.clients / training_processes + pace.server
    evaluation_seconds = evaluations(settings, left) * pace.evaluation / testing_processes
    seconds = trained * round_seconds + evaluation_seconds + pace.once
    up, answers = up_of(settings, sizes)
    return Cost(
        left=left,
        seconds=seconds,
        disk=disk,
        down=trained * taking * down_of(settings),
        up=trained * taking * up + clients * answers,
        memory_bytes=memory,
    )


def work_of(settings: RunSettings, sizes: Sizes) -> float:
    """Return the samples that clients and server still have to pass through the model.

    That is enough to tell a long run from a short one of the same data, before anything is measured.
    """
    taking = participants(settings)
    training = settings.training
    model = model_of(settings)
    clients = taking * mean_steps(training, sizes) * training.batch_size
    server = 0.0
    for part in parts_of(settings):
        work = part.work(model, sizes.holdout, taking, training)
        server += work.samples * deploying_share(settings, part)
    rounds = min(rounds_left(settings), settings.general.rounds)
    return rounds * (clients + server)


def evaluations(settings: RunSettings, left: int) -> int:
    """Return how many of the rounds that are left are evaluated."""
    rounds = settings.general.rounds
    rounds_left = range(rounds - left + 1, rounds + 1)
    return sum(map(settings.general.is_evaluated, rounds_left))
