"""The ClientApp through flwr's own messages, as the engine of one process sends them."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from client_builders import same
from flwr.app import ConfigRecord, Message, RecordDict
from in_process import faithful

from client_app.client import Variant
from client_app.handlers import failure_kind, worker
from client_app.local_site import DataChanged, NotAgreed, NotAllowed
from client_app.memory import file_of, folder_of
from client_app.memory import load as load_memory
from client_app.messages import pack, unpack
from client_app.models import build
from client_app.optimizer import TrainingSettings
from client_app.process import code_version
from client_app.run_spec import RunSpec
from client_app.runtime import ClientRuntime, initial_seed, simulation_runtime
from client_app.state import State, copy
from client_app.tensor_files import Damaged
from client_app.training import train_round
from client_app.variants.feature_gradients import FeatureGradients
from client_app.variants.local_parts import LocalBatchNorm
from client_app.variants.logit_shift import LogitShift
from data import DataError, DataSettings, SettingError
from fedskew.engines.local import LocalGrid

SHAPE = (1, 8, 8)
VARIANTS = (FeatureGradients(), LocalBatchNorm(), LogitShift())


@pytest.fixture(autouse=True)
def fresh_runtimes() -> Iterator[None]:
    yield
    simulation_runtime.cache_clear()


@pytest.fixture
def grid() -> Iterator[LocalGrid]:
    with faithful(LocalGrid()) as opened:
        yield opened


def run_spec_in(folder: Path, variants: tuple[Variant, ...] = VARIANTS) -> RunSpec:
    return RunSpec(
        data=DataSettings(clients=3, partition="iid", train_images=90, test_images=50),
        training=TrainingSettings(batch_size=16),
        model="mlp-bn",
        variants=variants,
        seed=3,
        device="cpu",
        folder=folder,
        code=code_version(),
    )


def shared_of(run_spec: RunSpec) -> dict[str, torch.Tensor]:
    model = build("mlp-bn", SHAPE, 10, initial_seed(run_spec.seed))
    private = frozenset().union(*(variant.private_names(model) for variant in run_spec.variants))
    return {name: t for name, t in copy(model.state_dict()).items() if name not in private}


def broadcast() -> dict[str, State]:
    generator = torch.Generator().manual_seed(0)
    return {
        "feature-gradients": {
            "weight": torch.randn(10, 64, generator=generator),
            "bias": torch.zeros(10),
        },
        "logit-shift": {"counts": torch.full((10,), 10 * 2**16)},
    }


def ask(
    grid: LocalGrid,
    run_spec: RunSpec | str,
    clients: list[int],
    memory: list[int] | None = None,
    **task: int,
) -> dict[str, object]:
    """Return the records by name of the reply to a message that asks for training."""
    config = {
        "assignment": run_spec if isinstance(run_spec, str) else run_spec.to_json(),
        "clients": clients,
        "memory": memory or [0] * len(clients),
        "memory-digests": [""] * len(clients),
        "data-digests": [""] * len(clients),
        **task,
    }
    sent = {f"broadcast/{name}": pack(state) for name, state in broadcast().items()}
    sent["model"] = pack(shared_of(run_spec_in(Path())))
    content = RecordDict({**sent, "task": ConfigRecord(config)})
    message = Message(content, dst_node_id=1, message_type="train.clients")
    (reply,) = grid.pull_messages(grid.push_messages([message]))
    assert not reply.has_error(), reply.error
    return dict(reply.content)


@pytest.mark.parametrize("sent", [faithful, lambda grid: grid], ids=["bytes", "handing over"])
def test_training_reports_what_the_loop_returns(
    sent: Callable[[LocalGrid], LocalGrid], tmp_path: Path
) -> None:
    run_spec = run_spec_in(tmp_path)
    with sent(LocalGrid()) as grid:
        records = ask(grid, run_spec, [0, 2], round=1)
    judge = ClientRuntime(run_spec)
    for number in (0, 2):
        client = judge.client(number, 1, shared_of(run_spec), broadcast(), {})
        judge.load(client)
        expected = train_round(client, VARIANTS, run_spec.training)
        assert same(unpack(records[f"{number}/model"]), expected.shared)
        uploaded = unpack(records[f"{number}/upload/feature-gradients"])
        assert same(uploaded, expected.uploads["feature-gradients"])
        numbers = dict(records[f"{number}/metrics"])
        assert numbers.pop("seconds") > 0
        assert numbers == {
            "num-examples": expected.examples,
            "loss": expected.loss,
            "steps": expected.trained.steps,
            "coefficient-sum": expected.trained.coefficient_sum,
        }
        assert dict(records[f"{number}/worker"])["device"] == "cpu"
        kept = load_memory(folder_of(tmp_path, number), 1)["private"]
        assert same(kept, expected.memory["private"])


def test_a_client_that_fails_costs_the_others_nothing(grid: LocalGrid, tmp_path: Path) -> None:
    run_spec = run_spec_in(tmp_path)
    alone = ask(grid, run_spec, [0], round=5)
    records = ask(grid, run_spec, [7, 0, 1], [0, 0, 4], round=5)
    assert "no client 7" in str(records["7/error"]["reason"])
    assert str(file_of(folder_of(tmp_path, 1), 4)) in str(records["1/error"]["reason"])
    assert {name for name in records if name[0] in "17"} == {"7/error", "1/error"}
    assert same(unpack(records["0/model"]), unpack(alone["0/model"]))


def test_other_code_and_unknown_variants_are_an_error_of_each_client(
    grid: LocalGrid, tmp_path: Path
) -> None:
    run_spec = run_spec_in(tmp_path)
    other = replace(run_spec, code="0123456789abcdef")
    assert ask(grid, other, [0, 1], round=1).keys() == {"0/error", "1/error"}
    elsewhere = json.dumps({"code": other.code, "model": "mlp-bn", "variants": {}, "lift": 3})
    records = ask(grid, elsewhere, [0], round=1)
    assert "other code than the server" in str(records["0/error"]["reason"])
    fields = json.loads(run_spec.to_json())
    fields["variants"]["unheard-of"] = {}
    assert ask(grid, json.dumps(fields), [0], round=1).keys() == {"0/error"}
    assert not (tmp_path / "memory").exists()


def test_the_version_of_the_code_is_that_of_what_the_process_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file that is edited during a run must not become the version of what the process has long imported."""
    first = code_version("data")
    monkeypatch.setattr(Path, "read_bytes", lambda path: b"edited")
    assert code_version("data") == first != code_version("data", "strategies")


def test_a_client_without_memory_starts_from_the_initial_private_tensors(tmp_path: Path) -> None:
    run_spec = run_spec_in(tmp_path)
    judge = ClientRuntime(run_spec)
    first = judge.client(0, 1, shared_of(run_spec), broadcast(), {})
    train_round(first, VARIANTS, run_spec.training)
    client = judge.client(1, 1, shared_of(run_spec), broadcast(), {})
    judge.load(client)
    initial = build("mlp-bn", SHAPE, 10, initial_seed(run_spec.seed)).state_dict()
    assert same(client.model.state_dict(), initial), "client 0's batch norm stayed in the process"
    assert client.start.keys() == initial.keys() - judge.private


def test_a_worker_names_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = ClientRuntime(run_spec_in(tmp_path))
    assert "gpu" not in worker(runtime)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "GPU A")
    runtime.device = "cuda"
    assert worker(runtime)["gpu"] == "GPU A"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_demanded_and_not_seen_is_an_error(
    tmp_path: Path,
) -> None:
    with pytest.raises(SettingError) as caught:
        ClientRuntime(replace(run_spec_in(tmp_path), device="cuda"))
    assert caught.value.key == "device"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (DataError("patients.csv: line 7"), "data"),
        (SettingError("alpha", "-1", "must be more than 0"), "setting"),
        (Damaged("cut short"), "memory"),
        (DataChanged("other data"), "data changed"),
        (FloatingPointError("nan"), "not finite"),
        (NotAgreed("another data set"), "agreement"),
        (NotAllowed("class-counts"), "policy"),
        (OSError("/home/somebody"), "failure"),
        (type("DataError", (Exception,), {})("of another package"), "failure"),
    ],
)
def test_a_site_reports_the_kind_of_its_error(error: Exception, kind: str) -> None:
    assert failure_kind(error) == kind
