"""A site's policy and its approval of runs, rule by rule: what is just allowed passes, what is one off is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from client_app.client import Report, Trained, Variant
from client_app.local_site import PERMISSIONS, NotAllowed, RunNotAllowed, hash_of
from client_app.models import MODELS
from client_app.optimizer import TrainingSettings
from client_app.state import State
from client_app.training import train_round
from client_app.variants import VARIANTS
from client_app.variants.resampling import Resampling
from data import DataError
from data.agreement import read_agreement
from server_app.settings import parse
from site_agent.config import Limits, Site
from site_agent.policy import (
    SPARE_EVALUATIONS,
    Policy,
    check_names,
    check_run,
    samples_in_update,
)
from site_agent.run_approval import (
    approve,
    approved,
    check_approved,
    settings_waiting,
    shown,
    waiting,
    waiting_folder,
)
from tests.client_app.client_builders import small_client
from tests.site_files import agreed, write

USUAL = ("model", "scores")
BATCHES = {"local_epochs": 1, "batch_size": 8}


def site_of(folder: Path, **site: Any) -> Site:
    agreement = read_agreement(write(folder / "federation.toml", agreed(**site.pop("toml", {}))))
    return Site.model_construct(
        name="north",
        agreement=agreement,
        data="npz:data.npz",
        state=folder / "state",
        policy=Limits.model_construct(**site),
    )


def policy_of(
    folder: Path,
    counts_C: tuple[int, ...] = (10, 0, 14),
    tested: int = 12,
    variants: tuple[Variant, ...] = (),
    training: dict[str, Any] = BATCHES,
    **site: Any,
) -> Policy:
    """Return the policy of a site with so many training samples of each class, 24 in all if nothing is said."""
    settings = TrainingSettings(**training)
    return Policy(
        site_of(folder, **site).policy, variants, torch.tensor(counts_C), tested, settings
    )


def report_of(shared: State, **more: Any) -> Report:
    return Report(24, 1.0, Trained(1, 1.0, 0.1, shared), shared, **more)


def key_of(error: pytest.ExceptionInfo[NotAllowed]) -> str:
    return error.value.permission


# ---- what an update is made of ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "training", "limit"),
    [
        ("min-batch-size", {"batch_size": 9}, 9),
        ("min-batch-size", {"batch_size": 100}, 24),  # of a site with 24 samples
        ("min-steps", {"batch_size": 8, "local_epochs": 5}, 15),
        ("min-steps", {"batch_size": 8, "local_steps": 2}, 2),
        ("min-update-samples", {"batch_size": 8, "local_steps": 2}, 16),
        ("min-update-samples", {"batch_size": 8, "local_epochs": 5, "batch_limit": 1}, 8),
        ("min-update-samples", {"batch_size": 8, "local_epochs": 2}, 24),
    ],
)
def test_training_at_a_limit_passes_and_above_it_does_not(
    tmp_path: Path, key: str, training: dict[str, Any], limit: int
) -> None:
    loose = {"min_batch_size": 1, "min_steps": 1, "min_update_samples": 1}
    field = key.replace("-", "_")
    at_limit = policy_of(tmp_path, training=training, **{**loose, field: limit})
    above = policy_of(tmp_path, training=training, **{**loose, field: limit + 1})
    update = {"w": torch.zeros(3)}
    at_limit.check_ready()
    at_limit.check_update(update, report_of(update))
    for check in (above.check_ready, lambda: above.check_update(update, report_of(update))):
        with pytest.raises(RunNotAllowed) as refused:
            check()
        assert key_of(refused) == key


@pytest.mark.parametrize(
    ("training", "samples"),
    [
        ({"batch_size": 8, "local_epochs": 1}, 24),
        ({"batch_size": 23, "local_epochs": 1}, 24),  # a last batch of one joins the one before
        ({"batch_size": 8, "local_steps": 1}, 8),
        ({"batch_size": 8, "local_steps": 2, "local_epochs": 7}, 16),
        ({"batch_size": 8, "local_steps": 3}, 24),
        ({"batch_size": 7, "local_steps": 3}, 21),
        ({"batch_size": 8, "local_epochs": 5, "batch_limit": 2}, 16),
        ({"batch_size": 1, "local_epochs": 1}, 24),
    ],
)
def test_the_different_samples_of_an_update(training: dict[str, Any], samples: int) -> None:
    assert samples_in_update(24, TrainingSettings(**training)) == samples


def test_an_update_of_few_samples_that_are_drawn_again_and_again_does_not_leave(
    tmp_path: Path,
) -> None:
    """Half of the batches of a sampler are the one sample of a rare class."""
    client = small_client((1, 23), model="linear")
    training = TrainingSettings(batch_size=8, local_steps=1)
    update = {"w": torch.zeros(3)}
    drawn = []
    for variants in ([Resampling(beta_start=1.0)], []):
        drawn.append(train_round(client, variants, training).drawn)
    assert drawn[0] is not None and drawn[0] < 8 and drawn[1] is None
    policy = policy_of(tmp_path, training={"batch_size": 8, "local_steps": 1})
    for enough in (None, 8):
        policy.check_update(update, report_of(update, drawn=enough))
    with pytest.raises(RunNotAllowed) as refused:
        policy.check_update(update, report_of(update, drawn=drawn[0]))
    assert key_of(refused) == "min-update-samples"


# ---- what may leave --------------------------------------------------------------------------------------------------


def test_what_a_run_asks_for_must_all_be_permitted(tmp_path: Path) -> None:
    variants = (VARIANTS["logit-shift"](), VARIANTS["control-variates"](), VARIANTS["proximal"]())
    needed = (*USUAL, "class-counts", "control-variates")
    policy_of(tmp_path, variants=variants, allow={*needed}).check_ready()
    policy_of(tmp_path, allow={*USUAL}).check_ready()
    with pytest.raises(NotAllowed) as refused:
        policy_of(tmp_path, variants=variants, allow={"model"}).check_ready()
    assert key_of(refused) == "class-counts, control-variates, scores"


@pytest.mark.parametrize("permission", USUAL)
def test_an_update_needs_the_permission_for_models_and_its_numbers_the_one_for_scores(
    tmp_path: Path, permission: str
) -> None:
    shared = {"w": torch.zeros(3)}
    report = report_of(shared, numbers={"learned-temperature/temperature": 1.0})
    policy_of(tmp_path, allow={*USUAL}).check_update(shared, report)
    policy_of(tmp_path, allow={"model"}).check_update(shared, report_of(shared))
    with pytest.raises(NotAllowed) as refused:
        policy_of(tmp_path, allow={*USUAL} - {permission}).check_update(shared, report)
    assert key_of(refused) == permission


def test_scores_are_of_enough_test_samples(tmp_path: Path) -> None:
    policy_of(tmp_path, tested=5, min_test_samples=5).check_ready()
    few = policy_of(tmp_path, tested=4, min_test_samples=5)
    for check in (few.check_ready, few.check_scores):
        with pytest.raises(NotAllowed) as refused:
            check()
        assert key_of(refused) == "scores"


def test_max_norm_is_of_the_update_and_not_of_the_model(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, max_norm=5.0)
    sent = {"w": torch.full((2,), 40.0)}

    def moved(*by: float) -> Report:
        return report_of({"w": sent["w"] + torch.tensor(by)})

    policy.check_update(sent, moved(3.0, 4.0))
    policy_of(tmp_path).check_update(sent, moved(3e6, 4e6))  # 0 is no limit
    for by in ((3.0, 4.01), (float("nan"), 0.0)):
        with pytest.raises(NotAllowed) as refused:
            policy.check_update(sent, moved(*by))
        assert key_of(refused) == "model"


@pytest.mark.parametrize("permission", PERMISSIONS)
def test_what_tells_of_classes_is_of_enough_samples_of_each_class_at_the_site(
    tmp_path: Path, permission: str
) -> None:
    """A class that the site lacks is not one of too few samples."""
    of_classes = {"class-counts", "class-statistics", "head-gradients"}
    policy_of(tmp_path, (10, 0, 5), min_class_samples=5).check_counts(permission)
    few = policy_of(tmp_path, (10, 0, 4), min_class_samples=5)
    none = policy_of(tmp_path, (0, 0, 0), min_class_samples=1, min_update_samples=0)
    if permission not in of_classes:
        few.check_counts(permission)
        none.check_counts(permission)
        return
    for policy in (few, none):
        with pytest.raises(NotAllowed) as refused:
            policy.check_counts(permission)
        assert key_of(refused) == permission


def test_sums_of_columns_are_of_as_many_rows_as_an_update(tmp_path: Path) -> None:
    policy_of(tmp_path, (4, 0, 4), min_update_samples=8).check_counts("column-sums")
    with pytest.raises(NotAllowed) as refused:
        policy_of(tmp_path, (4, 0, 3), min_update_samples=8).check_counts("column-sums")
    assert key_of(refused) == "column-sums"


def test_uploads_are_of_the_run_s_methods_permitted_and_of_enough_samples(tmp_path: Path) -> None:
    variants = (VARIANTS["logit-shift"](), VARIANTS["proximal"]())
    upload: dict[str, State] = {"logit-shift": {}}
    shared = {"w": torch.zeros(3)}
    policy = policy_of(tmp_path, variants=variants, allow={*USUAL, "class-counts"})
    policy.check_uploads({})
    policy.check_uploads(upload)
    policy.check_update(shared, report_of(shared, uploads=upload))
    kept = policy_of(tmp_path, variants=variants, allow={*USUAL})
    few = policy_of(
        tmp_path, variants=variants, allow={*USUAL, "class-counts"}, min_class_samples=11
    )
    for refusing in (kept, few):
        with pytest.raises(NotAllowed) as refused:
            refusing.check_update(shared, report_of(shared, uploads=upload))
        assert key_of(refused) == "class-counts"
    # Of a method that asks for nothing nothing leaves, and of no method of the run, whatever its name is.
    everything = policy_of(tmp_path, variants=variants, allow={*PERMISSIONS})
    for name in ("proximal", "unknown", "control-variates"):
        with pytest.raises(NotAllowed) as refused:
            everything.check_uploads({**upload, name: {}})
        assert key_of(refused) == name


# ---- the run ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("site", "changes", "key"),
    [
        ({"models": ("small-cnn", "mlp-bn")}, {"model": "digit-model"}, "models"),
        ({"methods": ("logit-shift",)}, {"method": "fedprox+fedshift"}, "methods"),
        ({"methods": ()}, {"method": "fedshift"}, "methods"),
        ({"max_rounds": 2}, {"rounds": 3}, "max-rounds"),
    ],
)
def test_a_run_of_other_models_methods_or_more_rounds_is_refused(
    tmp_path: Path, site: dict[str, Any], changes: dict[str, Any], key: str
) -> None:
    honest = {"method": "fedavg", "model": "mlp-bn", "rounds": 2}
    if site.get("methods"):
        honest["method"] = "fedshift"
    policy = site_of(tmp_path, **site)
    check_run(policy, parse(honest).run_spec())
    other = parse({**honest, **changes}).run_spec()
    check_run(site_of(tmp_path), other)
    with pytest.raises(RunNotAllowed) as refused:
        check_run(policy, other)
    assert key_of(refused) == key


def test_a_policy_names_methods_and_models_that_there_are(tmp_path: Path) -> None:
    module = {"module": {"name": "ward", "sha256": "0" * 64}}
    backbone = {"backbone": "torchvision:shufflenet_v2_x0_5", "weights": "0" * 64}
    known = site_of(tmp_path, methods=(*VARIANTS,), models=(*MODELS,))
    check_names(known)
    check_names(site_of(tmp_path))
    own = ("ward:Mine",)
    check_names(site_of(tmp_path, toml=module, methods=own, models=own))
    check_names(site_of(tmp_path, toml=backbone, models=(backbone["backbone"],)))
    for key, site in (
        ("methods", {"methods": ("proximal", "fedprox")}),
        ("models", {"models": ("mlp",)}),
        ("models", {"models": (backbone["backbone"],)}),
        ("methods", {"methods": own}),
        ("methods", {"methods": ("other:Mine",), "toml": module}),
        ("methods", {"methods": ("ward:not a name",), "toml": module}),
    ):
        with pytest.raises(DataError) as refused:
            check_names(site_of(tmp_path, **site))
        assert (refused.value.where, refused.value.key) == ("policy", key)
        assert refused.value.value == [*site[key]][-1]


TORN = (b"", b"0" * 64, b"\xff", bytes(4096))
"""What a loss of power leaves at the end of a file."""


@pytest.mark.parametrize("torn", TORN, ids=range(len(TORN)))
def test_each_different_question_to_train_counts_once(tmp_path: Path, torn: bytes) -> None:
    """A coordinator that asks for a round again and again, each time with other weights; the same ones are free."""
    site, folder = site_of(tmp_path, max_rounds=3), tmp_path / "run"
    states = [{"w": torch.full((2,), float(number))} for number in range(4)]
    rules = Policy(site.policy, (), torch.zeros(1), 0)
    rules.count_question(folder, 1, states[:1])
    (ledger,) = folder.iterdir()
    assert ledger.stat().st_mode & 0o777 == 0o600
    with ledger.open("ab") as file:
        file.write(torn)
    for number in (1, 0, 2, 0, 1, 2):  # the last three are repeated questions
        rules.count_question(folder, 1, [states[number]])
    with pytest.raises(RunNotAllowed) as refused:
        rules.count_question(folder, 1, [states[3]])
    assert key_of(refused) == "max-rounds"
    rules.count_question(tmp_path / "another run", 3, [states[3]])
    with pytest.raises(RunNotAllowed):
        rules.count_question(tmp_path / "another run", 4, [states[3]])
    with pytest.raises(RunNotAllowed):  # the same weights in another round are another question
        rules.count_question(folder, 2, states[:1])


# ---- approval of runs ------------------------------------------------------------------------------------------------


def refused_run(site: Site, settings: str) -> str:
    """Return the key of the policy by which a run with these settings is refused, "" where it takes place."""
    try:
        check_approved(site, settings)
    except RunNotAllowed as refused:
        return refused.permission
    return ""


def test_a_run_waits_until_its_very_settings_are_approved(tmp_path: Path) -> None:
    settings, other = '{"rounds": 2}', '{"rounds": 3}'
    free = site_of(tmp_path)
    assert not refused_run(free, settings) and not waiting(free)
    site = site_of(tmp_path, approve_runs=True)
    assert refused_run(site, settings) == refused_run(site, settings) == "approve-runs"
    assert [*waiting(site)] == [hash_of(settings)]
    assert waiting_folder(site).stat().st_mode & 0o777 == 0o700
    assert settings_waiting(site, hash_of(settings)) == settings
    approve(site, hash_of(settings))
    assert not refused_run(site, settings) and not waiting(site)
    assert approved(site).stat().st_mode & 0o777 == 0o700
    assert refused_run(site, other) == "approve-runs"
    (approved(site) / f"{hash_of(settings)}.json").unlink()
    assert refused_run(site, settings) == "approve-runs", "it is asked at every message"


def test_runs_that_wait_do_not_fill_the_disk(tmp_path: Path) -> None:
    site = site_of(tmp_path, approve_runs=True)
    for length, is_kept in ((2**16 + 1, False), (2**16, True)):
        assert refused_run(site, "x" * length) == "approve-runs"
        assert (hash_of("x" * length) in waiting(site)) == is_kept
    texts = [json.dumps({"seed": number}) for number in range(103)]
    for text in [*texts, texts[0]]:
        assert refused_run(site, text) == "approve-runs"
    kept = waiting(site)
    assert len([*waiting_folder(site).iterdir()]) == len(kept) == 100
    assert {hash_of(text) for text in texts[:99]} < kept.keys(), "the first ones stay"
    approve(site, hash_of(texts[0]))
    assert refused_run(site, texts[-1]) and hash_of(texts[-1]) in waiting(site)


def test_no_other_settings_than_those_that_wait_are_approved(tmp_path: Path) -> None:
    site, text = site_of(tmp_path, approve_runs=True), '{"rounds": 2}'
    assert refused_run(site, text)
    for code in ("0" * 64, "../approval", ""):
        with pytest.raises(DataError):
            approve(site, code)
    waiting(site)[hash_of(text)].write_text('{"rounds": 3}')
    with pytest.raises(DataError) as changed:
        approve(site, hash_of(text))
    assert changed.value.where == str(waiting(site)[hash_of(text)])
    assert not approved(site).exists()


def test_settings_are_shown_a_line_each() -> None:
    text = '{"training": {"batch-size": 8}, "model": "\\u202emlp"}'
    lines = ["{", '  "model": "\\u202emlp",', '  "training": {', '    "batch-size": 8', "  }", "}"]
    assert shown(text).splitlines() == lines
    for wrong in ("{", "[" * 100_000):
        with pytest.raises(DataError):
            shown(wrong)


def test_a_model_on_inputs_of_another_mean_is_another_question(tmp_path: Path) -> None:
    """Every mean that a coordinator sends for a table's columns makes the same model read another one."""
    site = site_of(tmp_path)
    rules = Policy(site.policy, (), torch.zeros(1), 1, rounds=1)
    models = {"average": {"weight": torch.ones(2)}}
    most = rules.rounds + 1 + SPARE_EVALUATIONS
    for number in (*range(most), 0, 1):
        rules.count_evaluation(tmp_path, 1, models, {"mean": torch.tensor([float(number)])})
    with pytest.raises(NotAllowed) as refused:
        rules.count_evaluation(tmp_path, 1, models, {"mean": torch.tensor([0.5])})
    assert "fedskew-site delete-run" in str(refused.value)
