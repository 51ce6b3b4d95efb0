"""A client's own models: fine-tuned ones and those of variants. They stay there, and are measured there."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from client_app.client import Client, Variant, overrides
from client_app.optimizer import TrainingSettings
from client_app.state import State, seed_of
from client_app.training import train_round

FINE_TUNED = "fine-tuned"
"""The name of the fine-tuned models among a run's models."""


def fine_tuned(client: Client, settings: TrainingSettings, variants: Sequence[Variant]) -> State:
    """Train `client.model` for finetune-epochs on the client's own samples and return its state.

    w <- w - rate grad CE(f(x; w), y), from the weights that are loaded: the last round's average with what the client
    keeps. The loss is the plain cross-entropy without the run's variants, as the model is for this client alone. Every
    parameter that trains in the run trains here, with the run's optimizer and batches, at the rate with which the
    client's last round begins. With finetune-sampling = method the run's variant that samples draws them here too.

    Args:
        client: with the round that was the last; its model is changed in place.
        settings: of the run.
        variants: of the run.
    """
    own = replace(
        settings,
        local_epochs=settings.finetune_epochs,
        local_steps=0,
        learning_rate=settings.rate(client.round),
        learning_rate_decay=1.0,
        learning_rate_decay_every=TrainingSettings.learning_rate_decay_every,
        schedule="step",
        schedule_rounds=0,
    )
    seed = seed_of(client.seed, FINE_TUNED)  # other batches than those of the round
    drawing = samplers(variants) if settings.finetune_sampling == "method" else []
    return train_round(replace(client, seed=seed), drawing, own).trained.state


def samplers(variants: Sequence[Variant]) -> list[Variant]:
    """Return the variants that draw a client's samples: one at most in a run."""
    return [variant for variant in variants if overrides(variant, "sample_weights")]


def is_personal(model: str, variants: Sequence[Variant]) -> bool:
    """Return whether a run's model is another one at each client: a model of its own, or a head of its own."""
    if model == FINE_TUNED or model in variants_with_models(variants):
        return True
    return any("own-head" in variant.needs for variant in variants)


def variants_with_models(variants: Sequence[Variant]) -> list[str]:
    """Return the names of the variants that keep a model of each client's own."""
    return sorted(variant.name for variant in variants if variant.personal_model)


def model_of_variant(name: str, start: State, memory: Mapping[str, State]) -> dict[str, Tensor]:
    """Return a client's model of a variant: what the client keeps, over the model that it begins with."""
    return {**start, **memory.get(name, {})}
