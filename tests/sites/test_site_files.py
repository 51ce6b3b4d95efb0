"""What federation.toml, site.toml and coordinator.toml must say: all else is refused with its file and key."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data import DataError, DataSettings, Federation
from data.agreement import MOST_SAMPLES, Agreement, read_agreement
from fedskew.federation.folder import FederationFolder
from site_agent.config import read_site, read_sites
from site_agent.data_view import federation_of
from tests.site_files import (
    NAMES,
    agreed,
    public_key,
    site_entries,
    site_folders,
    with_mask_keys,
    write,
)

P256 = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBA=="


def sites(*entries: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, "key": public_key(name)} for name in NAMES[:2]] + list(entries)


def with_mask_key(text: str) -> list[dict[str, Any]]:
    """Return three sites of which the last has this mask-key."""
    *others, last = with_mask_keys()
    return [*others, {**last, "mask-key": text}]


LOW_ORDER = f"x25519 {base64.b64encode(bytes(32)).decode()}"
"""A key with which every shared secret is 0."""
BACKBONE = "torchvision:shufflenet_v2_x0_5"


def test_an_agreement_numbers_its_sites_and_asks_for_more_than_half(tmp_path: Path) -> None:
    agreement = read_agreement(write(tmp_path / "federation.toml", agreed()))
    assert (agreement.number("south"), agreement.min_sites) == (2, 2)
    commented = {"name": "south", "key": f"{public_key('south')} anna@south"}
    other = read_agreement(write(tmp_path / "other.toml", agreed(site=sites(commented))))
    assert other.sites == agreement.sites


def samples(most: object) -> list[dict[str, Any]]:
    """Return three sites of which the second may state so many samples."""
    first, second, third = sites({"name": "south", "key": public_key("south")})
    return [first, {**second, "samples": most}, third]


NET, WEIGHTS = {"name": "net", "sha256": "0" * 64}, "0" * 64


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"classes": ["ill", " "]}, "classes"),
        ({"input_shape": "\uff11x8x8"}, "input-shape"),
        ({"std": [float("nan")]}, "std"),
        ({"min_sites": 4}, "min-sites"),
        ({"run_key": public_key("north")}, "run-key"),
        ({"site": sites()[:1]}, "min-sites"),
        ({"site": sites({"name": "north", "key": public_key("south")})}, "name"),
        ({"site": sites({"name": "south", "key": public_key("east")})}, "key"),
        ({"site": sites({"name": "south", "key": P256})}, "key"),
        *(({"site": samples(most)}, "samples") for most in (0, MOST_SAMPLES + 1, True)),
        ({"sums": "masked"}, "sums"),
        ({"sums": "masked", "site": with_mask_keys(NAMES[:2])}, "sums"),
        ({"site": with_mask_key("x25519 AAAA")}, "mask-key"),
        ({"site": with_mask_key(LOW_ORDER)}, "mask-key"),
        ({"site": with_mask_key(with_mask_keys()[0]["mask-key"])}, "mask-key"),
        ({"backbone": BACKBONE}, "weights"),
        ({"weights": WEIGHTS}, "backbone"),
        ({"backbone": BACKBONE, "weights": WEIGHTS[1:]}, "weights"),
        ({"module": {"name": "net"}}, "sha256"),
        ({"module": NET | {"sha256": "0" * 63}}, "sha256"),
        *(({"module": NET | {"name": name}}, "name")
          for name in ("../net", "import", "json", "client_app")),
    ],
)  # fmt: skip
def test_what_nobody_can_agree_to_is_refused(
    tmp_path: Path, changes: dict[str, Any], key: str
) -> None:
    path = write(tmp_path / "federation.toml", agreed(**changes))
    with pytest.raises(DataError) as error:
        read_agreement(path)
    assert error.value.where.startswith(str(path)) and error.value.key == key


def test_what_is_agreed_is_read(tmp_path: Path) -> None:
    """The control of the refusals above."""

    def read(**changes: Any) -> Agreement:
        return read_agreement(write(tmp_path / "federation.toml", agreed(**changes)))

    assert [site.samples for site in read(site=samples(MOST_SAMPLES)).sites] == [0, MOST_SAMPLES, 0]
    assert read(backbone=BACKBONE, weights=WEIGHTS).weights == WEIGHTS
    module = read(module=NET)
    assert (module.module, module.module_sha256) == ("net", "0" * 64)
    assert read(min_sites=3).min_sites == 3
    # Sums are masked where every one of at least three sites has a key for it, unless the text says otherwise.
    assert not read().masked
    assert read(site=with_mask_keys()).masked
    assert not read(site=with_mask_keys(), sums="plain").masked
    assert not read(site=with_mask_keys(NAMES[:2]), min_sites=2).masked


@pytest.mark.parametrize("content", [b"name = ", b"\xff\xfe"])
def test_no_toml_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "federation.toml").write_bytes(content)
    with pytest.raises(DataError):
        read_agreement(tmp_path / "federation.toml")


def test_a_file_is_read_up_to_its_largest_size(tmp_path: Path) -> None:
    path = write(tmp_path / "federation.toml", agreed())
    written = path.read_bytes()
    padded = written + b"#" * (2**20 - len(written))
    path.write_bytes(padded)
    assert tuple(read_agreement(path).names) == NAMES
    path.write_bytes(padded + b"#")
    with pytest.raises(DataError) as refused:
        read_agreement(path)
    assert "is larger than" in str(refused.value)


def test_a_site_reads_its_own_file(tmp_path: Path) -> None:
    folder = site_folders(tmp_path, {"allow": ["model"], "min-test-samples": 5, "max-norm": 2})
    site = read_site(folder / "east/site.toml")
    assert (site.name, site.number, site.device, site.threads) == ("east", 1, "cpu", 1)
    assert site.data == f"npz:{folder}/east/data.npz" and site.state == folder / "east/state"
    assert site.policy.allow == ("model",) and site.policy.min_test_samples == 5
    assert site.policy.max_norm == 2.0 and not site.has_link
    link = {"address": "a:1", "key": "node.key", "ca": "ca.crt"}
    talking = read_site(write(folder / "east/site.toml", site_entries(name="east", link=link)))
    assert talking.has_link and hash(talking), "runtimes are kept by their site"
    assert {*read_sites(folder)} == {0, 1, 2}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"federation": "../federation.toml"}, "federation"),
        ({"data": "npz:../north/data.npz"}, "data"),
        ({"data": "folder:data.npz"}, "data"),
        ({"data": "npz:{study}.npz"}, "data"),
        ({"state": "data.npz"}, "state"),
        ({"state": "a/../b"}, "state"),
        ({"state": "a\0b"}, "state"),
        ({"read": {"pixel-range": [0, 1]}}, "pixel-range"),
        ({"read": {"columns": "labels=y"}}, "columns"),
        ({"read": {"labels": "none.csv"}}, "labels"),
        ({"read": {"outside-folder": True}}, "outside-folder"),
        *(({"policy": {key: value}}, key) for key, value in (
            ("min-test-samples", 0), ("min-batch-size", 0), ("min-update-samples", 1.5), ("max-rounds", 0),
            ("models", "mlp-bn"), ("methods", [1]), ("approve-runs", "yes"),
        )),
    ],
)  # fmt: skip
def test_what_no_site_can_run_with_is_refused(
    tmp_path: Path, changes: dict[str, Any], key: str
) -> None:
    folder = site_folders(tmp_path)
    path = write(folder / "north/site.toml", site_entries(**changes))
    with pytest.raises(DataError) as error:
        read_site(path)
    assert error.value.key == key and error.value.where


COORDINATOR = {"address": "fl.example.org:9092", "superlink-port": 9093}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        *(({"largest-message-mib": wrong}, "largest-message-mib") for wrong in (0, "7")),
        ({"largest-message-mib": 64, "largest-reply-mib": 63}, "largest-reply-mib"),
        ({"connections": 9}, "connections"),
        ({"superlink-port": 9092}, "superlink-port"),
    ],
)
def test_what_no_coordinator_can_run_with_is_refused(
    tmp_path: Path, changes: dict[str, Any], key: str
) -> None:
    write(tmp_path / "coordinator.toml", {**COORDINATOR, **changes})
    with pytest.raises(DataError) as error:
        _ = FederationFolder(tmp_path).coordinator
    assert error.value.key == key


def test_a_coordinator_reads_its_own_file(tmp_path: Path) -> None:
    path = write(tmp_path / "coordinator.toml", COORDINATOR)
    usual = FederationFolder(tmp_path).coordinator
    assert (usual.host, usual.port) == ("fl.example.org", 9092)
    assert (usual.largest_message_mib, usual.largest_reply_mib) == (64, 4096)
    write(path, {**COORDINATOR, "largest-reply-mib": 64})
    assert FederationFolder(tmp_path).coordinator.largest_reply_mib == 64


def test_a_site_says_how_its_data_are_read(tmp_path: Path) -> None:
    """Pixels of 12 bits, which nothing else says, and a table whose columns have names of their own."""
    folder = site_folders(tmp_path) / "north"
    images, labels = np.arange(4 * 64, dtype=np.int16).reshape(4, 8, 8) * 16, np.arange(4) % 3
    parts = {"train_images": images, "test_images": images, "test_labels": labels}
    np.savez(folder / "ct.npz", **parts, train_labels=labels)

    def view(**changes: Any) -> Federation:
        site = read_site(write(folder / "site.toml", site_entries(**changes)))
        assert hash(site)  # as runtimes are kept by it
        return federation_of(site, DataSettings())

    with pytest.raises(DataError) as error:
        view(data="npz:ct.npz").dataset  # noqa: B018
    assert 'pixel-range = "0,4095"' in str(error.value)
    inputs = view(data="npz:ct.npz", read={"pixel-range": "0,4080"}).dataset.train.inputs
    assert inputs.max() == 1.0 and inputs.dtype == np.float32
    rows = [f"{k},{'healthy' if k // 4 % 2 else 'ill'}" for k in range(24)]
    (folder / "t.csv").write_text("age,finding\n" + "\n".join(rows))
    write(folder / "federation.toml", agreed(input_shape="1"))
    table = view(data="csv:t.csv", read={"columns": "label=finding"})
    assert table.counts_KC.sum() + len(table.dataset.test.labels) == 24


def test_a_rehearsal_takes_all_sites_of_one_agreement(tmp_path: Path) -> None:
    folder = site_folders(tmp_path)
    write(folder / "south/federation.toml", agreed(name="other"))
    with pytest.raises(DataError) as error:
        read_sites(folder)
    assert (error.value.key, error.value.where) == ("federation", str(folder / "south/site.toml"))
    (folder / "south/site.toml").unlink()
    with pytest.raises(DataError):
        read_sites(folder)
    with pytest.raises(DataError):
        read_sites(tmp_path / "nowhere")
