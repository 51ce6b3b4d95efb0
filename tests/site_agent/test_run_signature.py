"""Sites whose federation.toml has a run-key take only runs that this key has signed."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Context, RecordDict

from client_app.app import app
from client_app.local_site import RunNotSigned
from client_app.messages import handing_over
from client_app.models import build
from client_app.runtime import site_runtime
from data.agreement import read_agreement
from fedskew.engines.local import identify
from server_app.settings import parse
from site_agent.approval import summary
from site_agent.config import read_site
from site_agent.data_view import install
from site_agent.keys import public_text
from site_agent.run_approval import (
    ALGORITHM,
    check_app_signed,
    check_signed,
    signed_app_text,
    signed_text,
    waiting,
)
from strategies.core.exchange import EVALUATE, QUERY, TRAIN, Request
from strategies.core.rounds import Rounds
from strategies.fedavg import FedAvg
from tests.site_files import agreed, site_entries, site_folders, write

KEY = ec.derive_private_key(7, ec.SECP384R1())
OTHER = ec.derive_private_key(8, ec.SECP384R1())
RUN_KEY = public_text(KEY.public_key())
HONEST: dict[str, Any] = {"method": "fedavg", "model": "mlp-bn", "rounds": 2, "batch-size": 8}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield site_folders(tmp_path / "sites", run_key=RUN_KEY)
    install({})
    site_runtime.cache_clear()


def signed(text: bytes, key: ec.EllipticCurvePrivateKey = KEY) -> str:
    return base64.b64encode(key.sign(text, ALGORITHM)).decode()


def settings_text(folder: Path, **changes: Any) -> str:
    stated = {**HONEST, **changes, "dataset": f"sites:{folder}/federation.toml"}
    return parse(stated).run_spec().to_json()


def test_a_run_reads_the_same_whatever_order_its_methods_are_named_in(tmp_path: Path) -> None:
    """Sites approve its hash, and sum what its variants add in the order of the text."""
    folder = site_folders(tmp_path)
    texts = {settings_text(folder, method=name) for name in ("fedbn+fedshift", "fedshift+fedbn")}
    assert len(texts) == 1
    variants = list(json.loads(texts.pop())["variants"])
    assert variants == sorted(variants) and len(variants) == 2


def ask(
    folder: Path,
    kind: str = TRAIN,
    question: str = "readiness",
    policy: dict[str, Any] | None = None,
    **run_config: str,
) -> str:
    """Ask the site north in a run with this run config; return the error of its reply, "" without one."""
    install({0: read_site(write(folder / "north/site.toml", site_entries(policy=policy)))})
    chosen = parse({**HONEST, "dataset": f"sites:{folder}/federation.toml"})
    run_spec = chosen.run_spec()
    model = build("mlp-bn", (1, 8, 8), 3, 0, chosen.model)
    shared = Rounds(model, run_spec, clients=3, combine=FedAvg()).shared
    states = {QUERY: {"model": {}}, TRAIN: {"model": shared}, EVALUATE: {"deployed/": shared}}[kind]
    config = {key.replace("_", "-"): value for key, value in run_config.items()}
    identify()
    with handing_over():
        request = Request(kind, {"round": 1, "question": question}, states, run_spec.to_json(), {})
        message = request.messages({1: (0,)})[0]
        message.metadata.__dict__["_message_id"] = "1"
        content = app(message, Context(1, 1, {}, RecordDict(), config)).content
    return str(content["0/error"]["reason"]) if "0/error" in content else ""


def right_signature(folder: Path) -> str:
    sha256 = read_agreement(folder / "federation.toml").sha256
    return signed(signed_text(sha256, settings_text(folder)))


@pytest.mark.parametrize("kind", [TRAIN, EVALUATE, QUERY])
def test_a_signed_run_is_answered_and_one_without_signature_is_not(folder: Path, kind: str) -> None:
    assert ask(folder, kind).startswith("not signed: run-key ")
    assert ask(folder, kind, run_signature=right_signature(folder)) == ""


def test_a_signature_is_of_one_key_one_federation_and_one_runs_settings(folder: Path) -> None:
    agreement = read_agreement(folder / "federation.toml")
    settings, other = settings_text(folder), settings_text(folder, seed=1)
    right = signed_text(agreement.sha256, settings)
    check_signed(agreement, settings, signed(right))
    for signature in (
        signed(right, OTHER),
        signed(signed_text(agreement.sha256, other)),
        signed(signed_text("0" * 64, settings)),
        signed(signed_app_text(agreement.sha256, ["north"], json.loads(settings))),
        "é" * 90,  # no base64
        "",
    ):
        with pytest.raises(RunNotSigned):
            check_signed(agreement, settings, signature)
    with pytest.raises(RunNotSigned):
        check_signed(agreement, other, signed(right))
    assert ask(folder, run_signature=signed(right, OTHER)).startswith("not signed")


def test_only_the_question_of_status_needs_no_signature(folder: Path) -> None:
    assert ask(folder, QUERY, readiness="answers.json") == ""
    assert ask(folder, QUERY).startswith("not signed"), "a run asks it before round 1 as well"
    for kind, question in ((TRAIN, "readiness"), (EVALUATE, ""), (QUERY, "class-counts")):
        assert ask(folder, kind, question, readiness="answers.json").startswith("not signed")


def test_a_run_that_nobody_has_signed_reads_no_data_and_waits_for_no_approval(folder: Path) -> None:
    policy = {"approve-runs": True}
    assert ask(folder, policy=policy).startswith("not signed")
    site = read_site(folder / "north/site.toml")
    assert not waiting(site) and not site.state.exists()
    # With a signature it needs the approval as well.
    signature = right_signature(folder)
    assert ask(folder, policy=policy, run_signature=signature).startswith("policy: approve-runs")
    assert len(waiting(site)) == 1


def test_a_run_of_another_app_is_signed_for_its_sites_and_its_run_config(folder: Path) -> None:
    agreement = read_agreement(folder / "federation.toml")
    config = {"rounds": 3, "rate": 0.1, "fast": True, "name": "é"}
    text = signed_app_text(agreement.sha256, ["east", "north"], config)
    right = {**config, "run-signature": f"east,north {signed(text)}"}
    check_app_signed(agreement, "north", right)
    wrong = [
        config,
        {**right, "rounds": 4},
        {**right, "run-signature": f"east,north {signed(text, OTHER)}"},
        {**right, "run-signature": f"east,north,south {signed(text)}"},
        {**right, "run-signature": signed(text)},
    ]
    for site, run_config in [*(("north", one) for one in wrong), ("south", right)]:
        with pytest.raises(RunNotSigned):
            check_app_signed(agreement, site, run_config)


def test_who_approves_is_shown_whose_runs_the_site_takes(folder: Path) -> None:
    """A new text with another key is not approved unseen."""
    approved = folder / "north/state/approved/federation.toml"
    for before, warns in ((RUN_KEY, False), (public_text(OTHER.public_key()), True)):
        write(approved, agreed(run_key=before))
        lines = summary(read_site(folder / "north/site.toml"), "app").splitlines()
        (line,) = [line for line in lines if line.startswith("runs ")]
        assert RUN_KEY in line
        warnings = [line for line in lines if line.startswith("(!) runs")]
        assert bool(warnings) == warns and all(before in line for line in warnings)
