"""From a run's sizes and rates to what it will take: seconds, disk, bytes, memory."""

from dataclasses import dataclass

from client_app.training import private_names
from fedskew.costs.memory import memory_of, model_of, participants, upload_of
from fedskew.costs.rehearsal import Rates
from fedskew.costs.sizes import Sizes, steps
from server_app.results import RunFolder
from server_app.run_settings import RunSettings

FILES = 3
"""Files that a client keeps: of the last round, of the one before, and the one being written."""


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
    memory: float
    """Bytes."""


def rounds_left(settings: RunSettings) -> int:
    """Return the rounds that a run has to go."""
    done = 0 if settings.general.fresh else len(RunFolder(settings.folder).rounds())
    return settings.general.rounds - done


def cost_of(settings: RunSettings, sizes: Sizes, rates: Rates, workers: int = 1) -> Cost:
    """Return a run's cost, its clients played by so many processes."""
    general, model = settings.general, model_of(settings)
    left, taking, clients = rounds_left(settings), participants(settings), settings.data.clients
    mean_samples = sum(sizes.train) / len(sizes.train)
    one = rates.client + mean_steps(settings, sizes) * rates.step + mean_samples * rates.sample
    private = bool(private_names(model, settings.variants))
    tests = sizes.test * (clients if private and not sizes.own_tests else 1)
    at_once, testing = min(workers, taking), min(workers, clients) if private or sizes.own_tests else 1
    seconds = left * (taking * one / at_once + rates.server + rates.rest)
    seconds += evaluations(settings, left) * tests * rates.tested / testing + (rates.once if left else 0.0)
    upload = sum(upload_of(settings.variants, model, held) for held in sizes.held) / len(sizes.held)
    return Cost(
        left=left,
        seconds=seconds,
        disk=2 * rates.checkpoint + FILES * clients * rates.memory + general.rounds * rates.record,
        down=left * taking * rates.down,
        up=left * taking * (rates.up + upload),
        memory=memory_of(settings, sizes),
    )


def work_of(settings: RunSettings, sizes: Sizes) -> float:
    """Return the samples of all training steps that are left, of clients and of a server that distills.

    That is enough to tell a long run from a short one of the same data, before anything is measured.
    """
    a_round = participants(settings) * mean_steps(settings, sizes) * settings.training.batch_size
    server = sum(
        getattr(one, "steps", 0) * getattr(one, "batch_size", 0) for one in (settings.combine, *settings.deploys)
    )
    return rounds_left(settings) * (a_round + server)


def mean_steps(settings: RunSettings, sizes: Sizes) -> float:
    """Return the training steps of a client in a round, the mean over all clients."""
    return sum(steps(settings.training, samples) for samples in sizes.train) / len(sizes.train)


def evaluations(settings: RunSettings, left: int) -> int:
    """Return how many of the rounds that are left are evaluated."""
    every, rounds = settings.general.evaluate_every, settings.general.rounds
    return sum(1 for round in range(rounds - left + 1, rounds + 1) if round == rounds or (every and round % every == 0))
