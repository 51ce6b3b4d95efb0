"""Node keys: of one kind, for their owner alone."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from data import DataError
from data.agreement import mask_key_text, mask_public
from site_agent.keys import make_key, make_mask_key, public_text, read_key, read_mask_key


def test_a_key_is_for_its_owner_and_prints_its_public_half(tmp_path: Path) -> None:
    public = make_key(tmp_path / "node")
    assert (tmp_path / "node").stat().st_mode & 0o777 == 0o600
    assert public.startswith("ecdsa-sha2-nistp384 ") and public.count(" ") == 1
    assert public_text(read_key(tmp_path / "node").public_key()) == public


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    make_key(tmp_path / "node")
    before = (tmp_path / "node").read_bytes()
    with pytest.raises(DataError, match="never overwritten"):
        make_key(tmp_path / "node")
    assert (tmp_path / "node").read_bytes() == before


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    make_key(tmp_path / "node")
    (tmp_path / "node").chmod(0o644)
    with pytest.raises(DataError, match=r"others may read this key \(mode 644\); chmod 600"):
        read_key(tmp_path / "node")


@pytest.mark.parametrize(
    "key", [ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()]
)
def test_keys_of_other_kinds_are_refused(tmp_path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    form = (
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    (tmp_path / "node").write_bytes(key.private_bytes(*form))
    (tmp_path / "node").chmod(0o600)
    with pytest.raises(DataError, match="must be an ECDSA P-384 key"):
        read_key(tmp_path / "node")


def test_what_is_no_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_key(tmp_path / "node")
    (tmp_path / "node").write_text("no key")
    (tmp_path / "node").chmod(0o600)
    with pytest.raises(DataError, match="OpenSSH"):
        read_key(tmp_path / "node")


def test_a_mask_key_is_for_its_owner_and_prints_its_public_half(tmp_path: Path) -> None:
    file = tmp_path / "mask.key"
    public = make_mask_key(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert public.startswith("x25519 ") and public.count(" ") == 1
    assert mask_key_text(read_mask_key(file).public_key()) == public
    assert mask_key_text(mask_public(public)) == public
    with pytest.raises(DataError, match="never overwritten"):
        make_mask_key(file)
    file.chmod(0o640)
    with pytest.raises(DataError, match=r"others may read this key \(mode 640\)"):
        read_mask_key(file)


def test_what_is_no_mask_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the mask key cannot be read: No such file"):
        read_mask_key(tmp_path / "mask.key")
    make_key(tmp_path / "node")
    with pytest.raises(DataError, match="must be an X25519 key"):
        read_mask_key(tmp_path / "node")
    form = (
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (tmp_path / "node").write_bytes(ed25519.Ed25519PrivateKey.generate().private_bytes(*form))
    with pytest.raises(DataError, match="must be an X25519 key"):
        read_mask_key(tmp_path / "node")
