"""The site's own file of the backbone's weights: used only where its sha256 is the one that all parties agree to."""

from dataclasses import replace

from client_app.local_site import NotAgreed
from client_app.models import ModelSettings, is_own_model
from client_app.models.backbone import check_weights, sha256_of
from client_app.models.settings import of_hash
from client_app.run_spec import RunSpec
from data import DataError, SettingError
from site_agent.config import Site
from site_agent.policy import is_of_module


def check_model(site: Site, run_spec: RunSpec) -> None:
    """Raise NotAgreed for a model or weights of another package or file than the agreed module's or backbone's."""
    agreement = site.agreement
    weights = run_spec.model_settings.weights
    agreed = run_spec.model == agreement.backbone != ""
    own_model = is_own_model(run_spec.model) and is_of_module(run_spec.model, agreement.module)
    if own_model and not weights:
        return
    if agreed and weights in ("", agreement.weights_in_messages):
        return
    if weights or ":" in run_spec.model:
        raise NotAgreed(f"{weights or run_spec.model} is the site's own affair")


def own_model_settings(site: Site, run_spec: RunSpec) -> ModelSettings:
    """Return a run's settings of the model with this site's own file of weights. Raises DataError as `own_weights`."""
    if not run_spec.model_settings.weights:
        return run_spec.model_settings
    own = replace(run_spec.model_settings, weights=own_weights(site))
    return of_hash(own, site.agreement.weights)


def own_weights(site: Site) -> str:
    """Return the path of the site's file of the agreed backbone's weights.

    Raises:
        DataError: site.toml names no file, there is none, or it is another one: both hashes are named.
    """
    agreement = site.agreement
    agreed = (
        f"federation.toml agrees on {agreement.backbone} with weights of sha256 {agreement.weights}"
    )
    if site.weights is None:
        raise DataError(f"is missing: {agreed}", where="site.toml", key="weights")
    file = str(site.weights)
    try:
        here = sha256_of(file)
    except SettingError as error:
        raise DataError(f"{error.rule}, and {agreed}", where=file) from None
    if here != agreement.weights:
        raise DataError(f"has sha256 {here}, and {agreed}", where=file)
    try:
        check_weights(agreement.backbone, file)
    except SettingError as error:
        raise DataError(f"{error.key}: {error.rule}", where=file) from None
    return file
