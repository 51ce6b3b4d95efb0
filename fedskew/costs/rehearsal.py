"""A rehearsal: the real server and clients of a run for two rounds on made-up data of its shape, with the clock on.

So every method is measured by its own code and needs no formula. What a server repeats (its fields that end in `steps`
or `epochs`) is done once and then three times; the difference is the cost of two.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from client_app.models.classifier import INFERENCE_BATCH
from client_app.optimizer import TrainingSettings
from client_app.player import player
from client_app.process import choose_device
from data import DataSettings, federate, resolve
from fedskew.costs.memory import classes_of, participants, shape_of, upload_of
from fedskew.costs.sizes import steps
from fedskew.engines.local import LocalGrid
from server_app.app import Run
from server_app.results import RunFolder
from server_app.run_settings import RunSettings
from strategies.exchange import ExchangeSettings
from strategies.server import ServerMethod

FEW, MORE = 1, 3
"""Steps of two rehearsals, whose difference is measured."""
TESTED, TESTED_VALUES = 4, 2**26
"""Batches of test samples, or so many samples that they have that many values."""
HOLDOUT = 128
"""Images of the server's own, or a batch; what it does with all of them once is scaled to their true number."""
CLIENTS, SAMPLES = 20, 2
"""Clients at most, and each one's samples, where the server is measured; with more clients its work is scaled."""


@dataclass(frozen=True)
class Rates:
    """What things take, in seconds and bytes."""

    step: float
    """A training step on a whole mini-batch."""
    sample: float
    """A training sample, in what variants do with all samples before or after training."""
    client: float
    """What else a client takes in a round."""
    tested: float
    """A test sample, for all deployed models together."""
    server: float
    """Combining and deploying, in a round."""
    once: float
    """What is deployed after the last round alone."""
    rest: float
    """What else a round takes: messages, records, checkpoint."""
    down: float
    """Bytes to a client in a round."""
    up: float
    """Bytes from a client in a round, but for what depends on the classes it holds."""
    checkpoint: int
    """Bytes of a checkpoint."""
    memory: int
    """Bytes that a client keeps of a round."""
    record: int
    """Bytes of a round's record."""


class Stage:
    """Where runs are rehearsed: a folder for what they leave, and what has been measured so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clients: dict[object, tuple[float, float, float]] = {}
        self.rates: dict[object, Rates] = {}

    def measure(self, settings: RunSettings) -> Rates:
        """Return a run's rates; what it has in common with another one is measured once."""
        general, data = settings.general, settings.data
        common = (general.model, data.input_shape, classes_of(settings), general.device, data.augmentation)
        clients = (*common, quick(settings.training), settings.variants)
        parts = (settings.combine, settings.monitors, settings.deploys)
        watched = settings.training if settings.monitors else None
        server = (clients, parts, participants(settings), data.holdout_per_class, watched)
        if clients not in self.clients:
            self.clients[clients] = self.client_rates(settings)
        if server not in self.rates:
            self.rates[server] = self.all_rates(settings, *self.clients[clients])
        return self.rates[server]

    def client_rates(self, settings: RunSettings) -> tuple[float, float, float]:
        """Return the seconds of a step, of a client with one step and all its samples, and of a test sample."""
        samples = MORE * settings.training.batch_size
        batch = INFERENCE_BATCH[choose_device(settings.general.device)]
        tests = max(3, min(TESTED * batch, TESTED_VALUES // math.prod(shape_of(settings))))
        parts = [settings.combine, *settings.deploys]
        self.perform(settings, 1, samples, 2, parts)  # a process is slow when it does something first
        few = self.perform(settings, 1, samples, tests, parts).record["seconds"]
        more = self.perform(settings, 1, samples, 2, parts, batches=MORE).record["seconds"]
        step = max(0.0, more["client-work"] - few["client-work"]) / (MORE - FEW)
        return step, few["client-work"], max(0.0, few["evaluation"] - more["evaluation"]) / (tests - 2)

    def all_rates(self, settings: RunSettings, step: float, one_step: float, tested: float) -> Rates:
        """Return the run's rates, given its clients'."""
        clients = min(CLIENTS, participants(settings))
        every = [settings.combine, *(part for part in settings.deploys if not part.final_question)]
        final = [part for part in settings.deploys if part.final_question]
        played = self.perform(settings, clients, SAMPLES, 2, every)
        seconds, record = played.record["seconds"], played.record
        server = self.seconds_of_server(settings, clients, every, every, seconds["server"])
        once = 0.0
        if final:
            both = self.perform(settings, clients, SAMPLES, 2, [*every, *final]).record["seconds"]["server"]
            once = self.seconds_of_server(settings, clients, [*every, *final], final, both) - seconds["server"]
        beside = one_step - step - seconds["client-work"] / clients
        held = played.run.federation.counts_KC > 0
        uploads = sum(upload_of(settings.variants, played.run.model, int(one)) for one in held.sum(1))
        kept = [file.stat().st_size for file in played.folder.path.glob("memory/client-00000/*")]
        return Rates(
            step=step,
            sample=max(0.0, beside) / (MORE * settings.training.batch_size),
            client=seconds["clients"] / clients,
            tested=tested,
            server=server * participants(settings) / clients,
            once=max(0.0, once),
            rest=max(0.0, seconds["round"] - seconds["clients"] - seconds["server"] - seconds["evaluation"]),
            down=record["bytes-down"] / clients,
            up=(record["bytes-up"] - uploads) / clients,
            checkpoint=played.folder.checkpoint_file.stat().st_size,
            memory=max(kept, default=0),
            record=played.folder.rounds_file.stat().st_size // 2,
        )

    def seconds_of_server(
        self,
        settings: RunSettings,
        clients: int,
        parts: Sequence[ServerMethod],
        stepping: Sequence[ServerMethod],
        few: float,
    ) -> float:
        """Return what the server takes with all steps of the parts `stepping`, given what it takes with one of each.

        What is neither a step nor a monitor's training is what it does once with every image of its own.
        """
        holdout, here = settings.data.holdout_per_class, self.holdout(settings)
        once, total = few, 0.0
        for part in stepping:
            for name in repeated(part):
                if (repeats := getattr(part, name)) > FEW:
                    more = self.perform(settings, clients, SAMPLES, 2, parts, longer=(part.name, name))
                    each = max(0.0, more.record["seconds"]["server"] - few) / (MORE - FEW)
                    once, total = once - FEW * each, total + repeats * each
        if settings.monitors:  # they train as clients do
            more = self.perform(settings, clients, SAMPLES, 2, parts, epochs=MORE)
            epoch = max(0.0, more.record["seconds"]["server"] - few) / (MORE - FEW)
            passes = steps(settings.training, holdout) / steps(quick(settings.training), here)
            once, total = once - FEW * epoch, total + passes * epoch
        images = any(part.needs_holdout for part in parts) and here > 0
        return max(0.0, once) * (holdout / here if images else 1.0) + total

    def holdout(self, settings: RunSettings) -> int:
        """Return the rehearsal's images of a class at the server."""
        parts = (settings.combine, *settings.monitors, *settings.deploys)
        least = max(HOLDOUT, *(getattr(part, "batch_size", 0) for part in parts))
        return min(settings.data.holdout_per_class, math.ceil(least / classes_of(settings)))

    def perform(
        self,
        settings: RunSettings,
        clients: int,
        samples: int,
        tests: int,
        parts: Sequence[ServerMethod],
        *,
        batches: int = FEW,
        epochs: int = FEW,
        longer: tuple[str, str] = ("", ""),
    ) -> "Played":
        """Rehearse a run with so many clients of so many samples; `longer` names a part and its field with more steps.

        `batches` are those of an epoch.
        """
        short = [shortened(part, longer[1] if part.name == longer[0] else "") for part in parts]
        made = replace(
            settings,
            general=replace(
                settings.general, rounds=2, participation=1.0, evaluate_every=0, results=str(self.folder), fresh=True
            ),
            data=self.made_up(settings, clients, samples, tests),
            training=quick(settings.training, batches, epochs),
            exchange=ExchangeSettings(),
            combine=short[0],
            deploys=tuple(short[1:]),
        )
        folder = RunFolder(made.folder)
        federation = federate(made.data, made.general.seed)
        with LocalGrid() as grid, folder.locked():
            folder.clear()
            run = Run(grid, made, federation, folder, lambda line: None)
            run.finish()
        player.cache_clear()
        return Played(folder, run, folder.rounds()[-1].to_json())

    def made_up(self, settings: RunSettings, clients: int, samples: int, tests: int) -> DataSettings:
        """Return settings of random data of the run's shape, equally many of each class; the file is written once."""
        shape, classes, holdout = shape_of(settings), classes_of(settings), self.holdout(settings)
        sizes = {"train": clients * samples + classes * holdout, "test": tests}
        file = self.folder / f"{settings.data.input_shape}-{classes}-{sizes['train']}-{tests}.npz"
        if not file.exists():
            draws, arrays = np.random.default_rng(0), dict[str, Any]()
            for split, number in sizes.items():
                vectors = len(shape) == 1
                size = (number, *(shape if vectors else (*shape[1:], shape[0])))
                arrays[f"{split}_labels"] = np.arange(number) % classes
                arrays[f"{split}_images"] = (
                    draws.random(size, np.float32) if vectors else draws.integers(0, 256, size, np.uint8)
                )
            self.folder.mkdir(parents=True, exist_ok=True)
            np.savez(file, **arrays)
        return resolve(
            DataSettings(
                dataset=f"npz:{file}",
                cache=str(self.folder / "cache"),
                classes=str(classes),
                input_shape=settings.data.input_shape,
                mean=settings.data.mean,
                std=settings.data.std,
                augmentation=settings.data.augmentation,
                holdout_per_class=holdout,
                clients=clients,
                partition="iid",
            )
        )


@dataclass(frozen=True)
class Played:
    """A rehearsed run and the record of its last round."""

    folder: RunFolder
    run: Run
    record: dict[str, Any]


def quick(training: TrainingSettings, batches: int = FEW, epochs: int = FEW) -> TrainingSettings:
    """Return settings of so many steps, which move next to nothing."""
    same = ("batch_size", "momentum", "weight_decay", "clip_norm", "precision")
    kept = {name: getattr(training, name) for name in same}
    return TrainingSettings(local_epochs=epochs, batch_limit=batches, learning_rate=1e-6, **kept)


def shortened(part: ServerMethod, more: str) -> ServerMethod:
    """Return a part that takes one step where it would take many, and three in the field `more`."""
    return replace(part, **{name: min(getattr(part, name), MORE if name == more else FEW) for name in repeated(part)})


def repeated(part: ServerMethod) -> list[str]:
    """Return the fields that say how often a part repeats something."""
    return [field.name for field in fields(part) if field.name.endswith(("steps", "epochs"))]
