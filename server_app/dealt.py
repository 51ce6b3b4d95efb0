"""The data of a run, dealt out, as its model takes them."""

from client_app.features import with_features
from client_app.process import choose_device
from data import Federation, federate
from server_app.run_settings import RunSettings


def federation_of(settings: RunSettings) -> Federation:
    """Return the data as clients and server train on them."""
    federation, device = federate(settings.data, settings.general.seed), settings.general.device
    at = choose_device("auto" if device == "cuda" else device)
    return with_features(
        federation, settings.general.model, settings.model, settings.data.cache, at
    )
