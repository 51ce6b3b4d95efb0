"""Masked sums between sites: the models of plain ones to the bit, one sum per federation, and what a site refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from asked_site import answer, shared_of
from flwr.app import Message

from client_app.local_site import PERMISSIONS
from client_app.messages import pack, unpack
from client_app.models import build
from client_app.runtime import site_runtime
from client_app.tensor_files import read
from client_app.variants.class_prior import QUESTION
from client_app.variants.feature_statistics import LabelCounts
from data.agreement import read_agreement
from fedskew.engines import Resources, execute
from fedskew.engines.local import RehearsalGrid
from server_app.app import run
from server_app.settings import parse
from site_agent.audit import Audit
from site_agent.config import read_site, read_sites
from site_agent.data_view import install
from strategies.core.exchange import QUERY, TooFewReplies
from strategies.core.masked_sums import MaskedSums
from tests.site_files import NAMES, agreed, site_folders, with_mask_keys, write

POLICY = {"allow": list(PERMISSIONS)}
HEADS: dict[str, Any] = {"method": "fed3r+fed-lda", "model": "random-conv", "rounds": 0}
TRAINED: dict[str, Any] = {"method": "fedshift", "model": "mlp-bn", "rounds": 1}
USUAL: dict[str, Any] = {"batch-size": 8, "device": "cpu"}


pytestmark = pytest.mark.usefixtures("forget_runtimes")


def masking(folder: Path, **changes: Any) -> Path:
    """Write three sites that can mask, and return their folder."""
    return site_folders(folder, policy=POLICY, site=with_mask_keys(), **changes)


def settings_of(folder: Path, results: Path, config: dict[str, Any], **changes: Any) -> Any:
    dataset = f"sites:{folder}/federation.toml"
    return parse({**USUAL, **config, "dataset": dataset, "results": str(results), **changes})


def rehearse(folder: Path, results: Path, config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    settings = settings_of(folder, results, config, **changes)
    return execute(settings, Resources("inprocess"), lambda line: None, sites=str(folder))


def events(folder: Path, name: str = "north") -> list[dict[str, Any]]:
    """Return the entries of a site's audit log."""
    return [json.loads(line) for line in Audit(folder / name / "state/audit.jsonl").lines()]


@pytest.mark.parametrize("config", [TRAINED, HEADS], ids=["fedshift", "heads"])
def test_masked_sums_make_the_models_of_plain_ones(tmp_path: Path, config: dict[str, Any]) -> None:
    masked = masking(tmp_path / "masked")
    plain = masking(tmp_path / "plain", sums="plain")
    hashes = []
    for folder in (masked, plain):
        hashes.append(rehearse(folder, tmp_path / f"{folder.name}-results", config)["hash"])
    assert hashes[0]["deployed" if config is HEADS else "shared"]
    assert hashes[0] == hashes[1]
    summed = [entry for entry in events(masked) if entry["event"] == "summed"]
    assert len(summed) == (1 if config is TRAINED else 3)
    assert not (plain / "north/state/audit.jsonl").exists()


def test_another_seed_and_method_ask_for_nothing(tmp_path: Path) -> None:
    folder = masking(tmp_path / "sites")
    results = tmp_path / "results"
    rehearse(folder, results, TRAINED)
    before = [events(folder, name) for name in NAMES]
    assert [len(entries) for entries in before] == [1, 1, 1]
    rehearse(folder, results, {**TRAINED, "method": "fedshift+iwds"}, seed=2)
    assert [events(folder, name) for name in NAMES] == before


def test_class_counts_in_the_clear_are_refused_where_sums_are_masked(tmp_path: Path) -> None:
    for sums in ("masked", "plain"):
        folder = masking(tmp_path / sums, sums=sums)
        site_runtime.cache_clear()
        install({0: read_site(folder / "north/site.toml")})
        chosen = settings_of(folder, tmp_path / "results", TRAINED)
        content = answer(chosen, shared_of(chosen), QUERY, question=QUESTION)
        assert ("0/error" in content) == (sums == "masked")
    install({})
    site_runtime.cache_clear()


def test_a_question_after_the_last_round_has_no_masked_sum_and_is_answered(tmp_path: Path) -> None:
    """CCVR's, in the clear where the policy allows it: masks are for answers before round 1."""
    folder = masking(tmp_path / "masked")
    summary = rehearse(folder, tmp_path, {**TRAINED, "method": "ccvr"}, rounds=1)
    assert summary["models"].keys() == {"average", "ccvr"}
    assert "summed" not in {entry["event"] for entry in events(folder)}


def test_a_damaged_sum_is_asked_for_again(tmp_path: Path) -> None:
    folder = masking(tmp_path / "sites")
    first = rehearse(folder, tmp_path / "results", TRAINED, seed=1)
    (kept,) = (tmp_path / "results/sums").glob("*.safetensors")
    content = kept.read_bytes()
    kept.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    again = rehearse(folder, tmp_path / "results", TRAINED, seed=1, overwrite=True)
    assert again["hash"] == first["hash"]
    assert [entry["event"] for entry in events(folder)] == ["summed", "sum repeated"]


class Changing(RehearsalGrid):
    """A grid on which `change` gets each site's reply."""

    change: Callable[[int, Message], None]

    def answer_here(self, message: Message) -> Message:
        reply = super().answer_here(message)
        self.change(message.metadata.dst_node_id - 1, reply)
        return reply


def run_changed(
    folder: Path, results: Path, config: dict[str, Any], change: Callable[[int, Message], None]
) -> dict[str, Any]:
    settings = settings_of(folder, results, config)
    with Changing(read_sites(folder), read_agreement(folder / "federation.toml")) as grid:
        grid.change = change
        return run(grid, settings, lambda line: None)


def test_the_coordinator_gets_words_that_say_nothing(tmp_path: Path) -> None:
    folder = masking(tmp_path / "sites")
    seen: dict[int, torch.Tensor] = {}

    def look(client: int, reply: Message) -> None:
        record = reply.content.array_records.get(f"{client}/upload/words")
        if record is not None:
            seen[client] = unpack(record)["words"]

    run_changed(folder, tmp_path / "results", TRAINED, look)
    assert sorted(seen) == [0, 1, 2]
    assert torch.stack([*seen.values()]).sum(0).tolist() == [24, 24, 24]
    for words in seen.values():
        assert (words.abs() > 2**40).all()  # of three counts of 8; one in 2^23 words is as small


def test_a_site_without_an_answer_ends_the_run_by_name_and_keeps_no_sum(tmp_path: Path) -> None:
    folder = masking(tmp_path / "sites")

    def lose(client: int, reply: Message) -> None:
        if client == 1:
            reply.content.array_records.pop("1/upload/words", None)

    with pytest.raises(TooFewReplies) as error:
        run_changed(folder, tmp_path / "results", TRAINED, lose)
    assert "2 good replies of 3" in str(error.value) and "site east: " in str(error.value)
    assert not [*(tmp_path / "results/sums").glob("*")]


@pytest.mark.parametrize(
    ("added", "samples", "refused"),
    [
        (10, 30, False),  # 72 and 10 are at most 90
        (1, 24, True),
    ],
)
def test_a_sum_of_more_samples_than_agreed_ends_the_run(
    tmp_path: Path, added: int, samples: int, refused: bool
) -> None:
    """One site adds to its first word; nobody can say which."""
    sites = [{**site, "samples": samples} for site in with_mask_keys()]
    folder = site_folders(tmp_path / "sites", policy=POLICY, site=sites)

    def lie(client: int, reply: Message) -> None:
        name = f"{client}/upload/words"
        if client == 1 and name in reply.content.array_records:
            words = unpack(reply.content.array_records[name])["words"].clone()
            words[0] += added
            reply.content[name] = pack({"words": words})

    if refused:
        with pytest.raises(TooFewReplies):
            run_changed(folder, tmp_path / "results", TRAINED, lie)
    else:
        run_changed(folder, tmp_path / "results", TRAINED, lie)


def test_the_ledger_is_for_its_owner_and_keeps_no_counts_in_the_clear(tmp_path: Path) -> None:
    folder = masking(tmp_path / "sites")
    rehearse(folder, tmp_path / "results", TRAINED)
    state = folder / "north/state/sums"
    (file,) = state.rglob("*.safetensors")
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700
    tensors, text = read(file)
    assert text["answered"] and (tensors["words"].abs() > 2**40).all()
    (kept,) = (tmp_path / "results/sums").glob("*.safetensors")
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_sum_that_is_no_statistics_is_refused(tmp_path: Path) -> None:
    """The control of the tests above: what is compared is the sum's own check."""
    model = build("linear", (4,), 3, 0)
    server: Any = SimpleNamespace(model=model, start={})
    agreement = read_agreement(write(tmp_path / "federation.toml", agreed()))
    sums, upload = MaskedSums(agreement, tmp_path), LabelCounts().upload
    counts = torch.tensor([1, 2, 3])
    sums.check_total({"counts": counts}, upload, server)
    for wrong in (counts[:2], -counts):
        with pytest.raises(ValueError):
            sums.check_total({"counts": wrong}, upload, server)
