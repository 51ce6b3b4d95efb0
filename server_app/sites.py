"""A run between sites: the server's questions before round 1, and its record of data that it does not see."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from client_app.local_site import NOT_SIGNED, POLICY, QUESTION, RUN_KEYS, hash_of
from client_app.site_questions import STANDARDIZATION
from client_app.variants.class_prior import QUESTION as CLASS_COUNTS
from data import DataError, Federation, SettingError
from data.agreement import Agreement
from data.resolve import file_of
from data.text import LineSink
from server_app.evaluation import sizes
from server_app.run_folder import RunFolder, write_text
from server_app.run_settings import RunSettings
from server_app.strategy import federation_of, model_of, strategy_of
from strategies.core.exchange import Grid
from strategies.core.questions import ask_readiness
from strategies.core.rounds import Rounds


def ask_sites(
    rounds: Rounds,
    grid: Grid,
    agreement: Agreement,
    method: str,
    report_line: LineSink,
) -> None:
    """Ask every site whether it can do its part, and report why one cannot.

    Raises SettingError for what a site does not let leave, DataError for a run that a site refuses as nobody has signed
    it, TooFewReplies when fewer than min-sites are ready.
    """
    names = ", ".join(agreement.without_samples)
    if names:
        warning = f"federation.toml agrees on no samples for {names}"
        report_line(f"{warning}: a site counts for as many as it states")
    report_line(f"settings that sites see: sha256 {hash_of(rounds.run_spec)}")
    exchange = ask_readiness(rounds, grid)
    for client, reason in exchange.failures.items():
        report_line(f"site {agreement.names[client]} is not ready: {reason}")
    for client, failure in sorted(exchange.reported.items()):
        name = agreement.names[client]
        if failure.kind == NOT_SIGNED:
            reason = f"site {name} refuses the run, as run-key has not signed it: {failure.reason}, a line of its log"
            raise DataError(reason, where="federation.toml")
        if failure.kind != POLICY:
            continue
        permission = failure.permission
        kept = f"{permission} {failure.number}"
        if rounds.column_sums and permission == rounds.column_sums.permission:
            rule = (
                "mean and std are not stated, so they come from sums of the columns over all sites, and site "
                f"{name} does not let them leave: {kept}, a line of its log"
            )
            remedy = f"state mean and std in federation.toml, or let {name} allow {permission}"
            raise DataError(f"{rule} ({remedy})", where="federation.toml")
        rule = f"needs what site {name} does not let leave: {kept}"
        if permission in RUN_KEYS:
            rule = f"the policy of site {name} refuses the run: {kept}, a line of its log"
        raise SettingError("method", method, rule)
    exchange.check_enough(rounds.exchange_settings.min_reply_share, QUESTION)


def two_sites_warning(settings: RunSettings) -> str:
    """Return what two sites learn of each other by the class counts that a method broadcasts, or "" elsewhere.

    Both get the sum of the counts of all, and each knows its own.
    """
    agreement = settings.agreement
    tells = any(variant.upload.permission == CLASS_COUNTS for variant in settings.variants)
    if agreement is None or len(agreement.sites) != 2 or not tells:
        return ""
    first, second = agreement.names
    return (
        f"{settings.general.method} sends the sum of both sites' class counts to both: {first} and {second} learn each "
        "other's exact number of training samples of each class"
    )


def write_readiness(grid: Grid, settings: RunSettings, file: Path) -> None:
    """Ask every site whether it is ready for a run, and write their answers as JSON: by name "", or why one is not.

    The run does not begin. Raises SettingError for a run that is not between sites.
    """
    agreement = settings.agreement
    if agreement is None:
        rule = f"must be sites:FILE with {QUESTION} = FILE"
        raise SettingError("dataset", settings.data.dataset, rule)
    federation = federation_of(settings)
    rounds = strategy_of(settings, federation, model_of(settings, federation), "cpu")
    failures = ask_readiness(rounds, grid).failures
    answers = {name: failures.get(client, "") for client, name in enumerate(agreement.names)}
    write_text(file, json.dumps(answers))


def keep_agreement(settings: RunSettings, folder: RunFolder) -> None:
    """Keep the text that the sites agree to in the run's folder: by the time of a report they may have another."""
    if settings.agreement is not None:
        folder.agreement_file.write_bytes(file_of(settings.data.dataset).read_bytes())


def standardization_of(federation: Federation, rounds: Rounds) -> dict[str, Any]:
    """Return mean and std of a table's columns, from its training rows, for settings.json: {} where they are stated.

    Between sites they are known once all have answered.
    """
    data = federation.dataset
    mean: Sequence[float] = data.mean
    std: Sequence[float] = data.std
    rows = federation.standardized_rows
    if STANDARDIZATION in rounds.states:
        state = rounds.states[STANDARDIZATION]
        mean, std, rows = state["mean"].tolist(), state["std"].tolist(), int(state["rows"])
    if not rows:
        return {}
    # A number where no column has a name; a setting that is stated is one number for all columns.
    names: Sequence[object] = data.input_columns or range(1, data.shape[0] + 1)
    columns = [
        {"column": name, "mean": mean[place % len(mean)], "std": std[place % len(std)]}
        for place, name in enumerate(names)
    ]
    return {"standardization": {"rows": rows, "columns": columns}}


def about_data(federation: Federation, agreement: Agreement | None) -> dict[str, Any]:
    """Return what settings.json says of the data: of sites what they have agreed to, else who holds how much."""
    about: dict[str, Any] = {}
    if agreement is None:
        about["samples"] = sizes(federation)
    else:
        stated: dict[str, Any] = {"name": agreement.name, "sha256": agreement.sha256}
        stated["sites"] = agreement.names
        largest = {site.name: site.samples for site in agreement.sites if site.samples}
        if largest:
            stated["samples"] = largest
        about["agreement"] = stated
    if federation.dataset.input_columns:
        about["input-columns"] = list(federation.dataset.input_columns)
    if federation.dataset.medians:
        about["medians"] = dict(federation.dataset.medians)
    return about
