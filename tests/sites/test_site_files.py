"""What federation.toml and site.toml must say: everything else gets one sentence with file, key, value and rule."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data import DataError, DataSettings
from data.agreement import read_agreement
from site_agent.config import Site, read_link, read_site, read_sites
from site_agent.data_view import SiteView
from site_agent.preflight import offline
from tests.dicom_files import write_archive
from tests.site_files import (
    CLASSES,
    NAMES,
    agreed,
    public_key,
    site_entries,
    site_folders,
    with_mask_keys,
    write,
    write_mask_key,
)

P256 = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBA=="
ED25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0cGqsdqHVxWyPvbXXLuLdwtGXpDk5qLrLtKqzN9bNu"


def sites(*entries: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, "key": public_key(name)} for name in NAMES[:2]] + list(entries)


def with_mask_key(text: str) -> list[dict[str, Any]]:
    """Return three sites of which the last has this mask-key."""
    *others, last = with_mask_keys()
    return [*others, {**last, "mask-key": text}]


LOW_ORDER = f"x25519 {base64.b64encode(bytes(32)).decode()}"
"""A key with which every shared secret is 0."""


def test_an_agreement_numbers_its_sites_and_asks_for_more_than_half(tmp_path: Path) -> None:
    agreement = read_agreement(write(tmp_path / "federation.toml", agreed()))
    assert (
        agreement.names == list(NAMES)
        and agreement.number("south") == 2
        and agreement.min_sites == 2
    )
    assert (
        agreement.classes == tuple(CLASSES)
        and agreement.shape == (1, 8, 8)
        and len(agreement.sha256) == 64
    )
    commented = {"name": "south", "key": f"{public_key('south')} anna@south"}
    assert (
        read_agreement(write(tmp_path / "other.toml", agreed(site=sites(commented)))).sites
        == agreement.sites
    )


@pytest.mark.parametrize(
    ("changes", "key", "rule"),
    [
        ({"clases": ["a"]}, "clases", "there is no such key"),
        ({"classes": []}, "classes", "must be at least two names"),
        ({"classes": ["ill", "ill"]}, "classes", "must name each once"),
        ({"classes": ["ill", " "]}, "classes", "must be without spaces around"),
        ({"classes": "ill,healthy"}, "classes", "must be a list"),
        ({"input_shape": "1x8"}, "input-shape", "must be CHANNELSxHEIGHTxWIDTH"),
        ({"input_shape": "\uff11x8x8"}, "input-shape", "must be CHANNELSxHEIGHTxWIDTH"),
        ({"mean": [0.5, 0.5]}, "mean", "must be one value, or 1, for input-shape 1x8x8"),
        ({"std": [0]}, "std", "must be greater than 0"),
        ({"std": [float("nan")]}, "std", "must be finite"),
        ({"app": "12ab"}, "app", "must be a sha256"),
        ({"app": None}, "app", "is missing"),
        ({"min_sites": 1}, "min-sites", "must be at least 2"),
        ({"min_sites": 4}, "min-sites", "must be at most the number of sites, 3"),
        ({"site": sites()[:1]}, "min-sites", "must be at least 2"),
        ({"name": "../chest"}, "name", "must be 1 to 40 letters"),
        (
            {"site": sites({"name": "north", "key": public_key("south")})},
            "name",
            "is another site's",
        ),
        ({"site": sites({"name": "south", "key": public_key("east")})}, "key", "is another site's"),
        (
            {"site": sites({"name": "south", "key": ED25519})},
            "key",
            "must be a node's public key: ecdsa-sha2-nistp384",
        ),
        (
            {"site": sites({"name": "south", "key": P256})},
            "key",
            "must be a node's public key: ecdsa-sha2-nistp384",
        ),
        ({"site": sites({"name": "south", "keys": "x"})}, "keys", "there is no such key"),
        ({"sums": "secret"}, "sums", "must be one of plain, masked"),
        ({"sums": "masked"}, "sums", "needs a mask-key of site north, east, south"),
        (
            {"sums": "masked", "site": with_mask_keys(NAMES[:2])},
            "sums",
            "must be plain with fewer than 3 sites",
        ),
        (
            {"site": [*with_mask_keys(NAMES[:2]), {"name": "s", "key": public_key("south")}]},
            "sums",
            "is missing: site s has no mask-key",
        ),
        (
            {"site": with_mask_key("x25519 AAAA")},
            "mask-key",
            "must be a key for masked sums: x25519 and its base64 form",
        ),
        ({"site": with_mask_key(f"x25519 {44 * 'A'}")}, "mask-key", "must be a key for masked"),
        ({"site": with_mask_key(LOW_ORDER)}, "mask-key", "must be a key for masked sums"),
        ({"site": with_mask_key("")}, "mask-key", "must be a key for masked sums"),
        (
            {"site": with_mask_key(with_mask_keys()[0]["mask-key"])},
            "mask-key",
            "is another site's",
        ),
    ],
)
def test_what_nobody_can_agree_to_is_refused(
    tmp_path: Path, changes: dict[str, Any], key: str, rule: str
) -> None:
    path = write(tmp_path / "federation.toml", agreed(**changes))
    with pytest.raises(DataError) as error:
        read_agreement(path)
    assert error.value.where.startswith(str(path))
    assert error.value.key == key and rule in error.value.rule
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"name = ", b"\xff\xfe", b"x" * (2**20 + 1)])
def test_no_toml_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "federation.toml").write_bytes(content)
    with pytest.raises(DataError, match=r"federation.toml: (is no TOML|has \d+ bytes)"):
        read_agreement(tmp_path / "federation.toml")


def test_a_site_reads_its_own_file(tmp_path: Path) -> None:
    folder = site_folders(tmp_path, {"allow": ["model"], "min-test-samples": 5, "max-norm": 2})
    site = read_site(folder / "east/site.toml")
    assert (site.name, site.number, site.device, site.threads) == ("east", 1, "cpu", 1)
    assert site.data == f"npz:{folder}/east/data.npz" and site.state == folder / "east/state"
    assert site.allow == {"model"} and site.min_test_samples == 5 and site.max_norm == 2.0
    assert {*read_sites(folder)} == {0, 1, 2} and not site.state.exists()


@pytest.mark.parametrize(
    ("changes", "key", "rule"),
    [
        ({"stat": "x"}, "stat", "there is no such key"),
        (
            {"name": "west"},
            "name",
            "is no site of federation chest, whose sites are north, east, south",
        ),
        ({"federation": "other.toml"}, "", "there is no such file"),
        ({"federation": "../federation.toml"}, "federation", "must not hold .."),
        ({"data": "npz:../north/data.npz"}, "data", "must not hold .."),
        ({"data": "npz:gone.npz"}, "data", "there is no "),
        ({"data": "folder:data.npz"}, "data", "there is no "),
        (
            {"data": "digits"},
            "data",
            "must be folder:PATH, npz:PATH, csv:PATH or abide:FOLDER/SITE",
        ),
        ({"data": "abide:YALE"}, "data", "YALE is no site of ABIDE"),
        ({"state": "."}, "data", "must not lie below state = '.'"),
        ({"state": "data.npz"}, "state", "must be a folder"),
        ({"state": "a/../b"}, "state", "must not hold .."),
        ({"state": "x" * 4301}, "state", "is no path here (File name too long)"),
        ({"state": "a\0b"}, "state", "is no path here (embedded null byte)"),
        ({"federation": "~nobody-here/f.toml"}, "federation", "is no path here"),
        ({"data": "npz:" + "x" * 300}, "data", "is no path here (File name too long)"),
        ({"device": "tpu"}, "device", "must be one of cpu, cuda, auto"),
        ({"threads": 0}, "threads", "must be 1 to 1024"),
        ({"threads": True}, "threads", "must be a whole number"),
        ({"policy": {"allow": ["model", "images"]}}, "allow", "must be some of model, scores"),
        ({"policy": {"alow": []}}, "alow", "there is no such key"),
        ({"policy": {"max-norm": -1}}, "max-norm", "must be 0 (no limit) or more"),
        ({"read": {"pixel-rang": "0,1"}}, "pixel-rang", "there is no such key"),
        ({"read": {"pixel-range": [0, 1]}}, "pixel-range", "must be text"),
        ({"read": {"pixel-range": "9,1"}}, "pixel-range", "must be LOW,HIGH with LOW"),
        (
            {"read": {"columns": "labels=y"}},
            "columns",
            "must be ROLE=NAME,... with path, label, site",
        ),
        ({"read": {"labels": "none.csv"}}, "labels", "there is no"),
        ({"read": {"outside-folder": 1}}, "outside-folder", "must be true or false"),
        (
            {"read": {"first-label": 1}, "data": "abide:NYU"},
            "data",
            "is read in one way: [read] has no",
        ),
        ({"policy": {"min-test-samples": 0}}, "min-test-samples", "must be at least 1"),
    ],
)
def test_what_no_site_can_run_with_is_refused(
    tmp_path: Path, changes: dict[str, Any], key: str, rule: str
) -> None:
    folder = site_folders(tmp_path)
    path = write(folder / "north/site.toml", site_entries(**changes))
    with pytest.raises(DataError) as error:
        read_site(path)
    assert error.value.key == key and rule in error.value.rule
    assert error.value.where and "\n" not in str(error.value)


def test_a_site_says_how_its_data_are_read(tmp_path: Path) -> None:
    """Pixels of 12 bits, which nothing else says, and a table whose columns have names of their own."""
    folder = site_folders(tmp_path) / "north"
    images, labels = np.arange(4 * 64, dtype=np.int16).reshape(4, 8, 8) * 16, np.arange(4) % 3
    np.savez(
        folder / "ct.npz",
        train_images=images,
        train_labels=labels,
        test_images=images,
        test_labels=labels,
    )
    ct = write(folder / "site.toml", site_entries(data="npz:ct.npz"))
    with pytest.raises(
        DataError, match=r'under \[read\] of site.toml, pixel-range = "0,4080" takes these two'
    ):
        view_of(read_site(ct))
    from_1 = {"train_labels": labels + 1, "test_labels": labels + 1}
    np.savez(folder / "from1.npz", train_images=images // 64, test_images=images // 64, **from_1)
    with pytest.raises(DataError, match=r"under \[read\] of site.toml, first-label = 1$"):
        view_of(read_site(write(folder / "site.toml", site_entries(data="npz:from1.npz"))))
    ct = write(
        folder / "site.toml", site_entries(data="npz:ct.npz", read={"pixel-range": "0,4080"})
    )
    view = view_of(read_site(ct))
    assert hash(read_site(ct))  # as runtimes are kept by it
    assert view.dataset.train_inputs.max() == 1.0 and view.dataset.train_inputs.dtype == np.float32
    rows = [f"{k},{'healthy' if k // 4 % 2 else 'ill'},p{k // 4}" for k in range(24)]
    images = write_archive(folder / "archive", prefix="N")
    (folder / "findings.csv").write_text(
        "PatientID,finding\n" + "".join(f"N{p:03},{('ill', 'healthy')[p % 2]}\n" for p in range(12))
    )
    read = {"labels": "findings.csv", "columns": "label=finding"}
    site = read_site(write(folder / "site.toml", site_entries(data=f"folder:{images}", read=read)))
    assert site.reading.labels == str(folder / "findings.csv")
    assert view_of(site).counts_C.sum() + view_of(site).tested == 72
    (folder / "t.csv").write_text("age,finding,who\n" + "\n".join(rows))
    write(folder / "federation.toml", agreed(input_shape="1"))
    read = {"columns": "label=finding,subject=who"}
    site = read_site(write(folder / "site.toml", site_entries(data="csv:t.csv", read=read)))
    assert view_of(site).counts_C[:2].sum() + len(view_of(site).dataset.test_labels) == 24


def view_of(site: Site) -> SiteView:
    return SiteView(
        DataSettings(), site.agreement, site.number, site.data, site.cache, site.reading
    )


def test_a_link_names_files_that_are_there(tmp_path: Path) -> None:
    folder = site_folders(tmp_path)
    link = {"address": "127.0.0.1:1", "key": "node.key", "ca": "ca.crt"}
    path = write(folder / "north/site.toml", site_entries(link=link))
    (folder / "north/node.key").touch()
    with pytest.raises(DataError, match=r"link: ca = 'ca.crt': there is no such file"):
        read_link(path)
    (folder / "north/ca.crt").touch()
    assert read_link(path).address == "127.0.0.1:1" and read_site(path).name == "north"


def test_a_rehearsal_takes_all_sites_of_one_agreement(tmp_path: Path) -> None:
    folder = site_folders(tmp_path)
    write(folder / "south/federation.toml", agreed(name="other"))
    with pytest.raises(DataError) as error:
        read_sites(folder)
    assert (error.value.key, error.value.where) == ("federation", str(folder / "south/site.toml"))
    (folder / "south/site.toml").unlink()
    with pytest.raises(DataError, match=r"holds no site\.toml of south"):
        read_sites(folder)
    write(
        folder / "copy/site.toml",
        site_entries(federation=str(folder / "north/federation.toml"), data="npz:d.npz"),
    )
    (folder / "copy/d.npz").touch()
    with pytest.raises(DataError, match="name = 'north': is another folder's site as well"):
        read_sites(folder)
    with pytest.raises(DataError, match=r"holds no \*/site\.toml"):
        read_sites(tmp_path / "nowhere")


def test_check_compares_the_mask_key_with_the_agreed_one(tmp_path: Path) -> None:
    folder = site_folders(tmp_path, site=with_mask_keys())
    path = folder / "north/site.toml"

    def row() -> str:
        (found,) = [row for row in offline(read_site(path), path) if row.subject == "mask key"]
        return str(found)

    assert row() == f"ok  mask key     {folder}/north/mask.key"
    write_mask_key(folder / "north/mask.key", "mallory")
    assert row().startswith("NO  mask key") and "federation.toml says x25519 " in row()
    (folder / "north/mask.key").unlink()
    assert "the mask key cannot be read" in row()
    (folder / "other").mkdir()
    write_mask_key(folder / "other/key", "north")
    entries = site_entries(**{"mask-key": f"{folder}/other/key"})
    assert read_site(write(path, entries)).mask_key == folder / "other/key"
    assert row().startswith("ok  mask key")

    # Without masks nobody looks for a key.
    plain = site_folders(tmp_path / "plain", site=with_mask_keys(), sums="plain")
    rows = offline(read_site(plain / "north/site.toml"), plain / "north/site.toml")
    assert "mask key" not in [row.subject for row in rows]
