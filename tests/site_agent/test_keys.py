"""Keys and secrets of a site: of one kind, for their owner alone, never overwritten, and one process per state."""

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from data import DataError
from data.agreement import mask_key_text
from site_agent.keys import make_key, make_mask_key, public_text, read_key, read_mask_key
from site_agent.service import is_at_work, only_one, read_secret


def node_key_text(file: Path) -> str:
    return public_text(read_key(file).public_key())


def mask_text(file: Path) -> str:
    return mask_key_text(read_mask_key(file).public_key())


@pytest.mark.parametrize(
    ("make", "read", "kind"),
    [
        (make_key, node_key_text, "ecdsa-sha2-nistp384 "),
        (make_mask_key, mask_text, "x25519 "),
    ],
)
def test_a_key_is_for_its_owner_and_prints_its_public_half(
    tmp_path: Path, make: Callable[[Path], str], read: Callable[[Path], str], kind: str
) -> None:
    file = tmp_path / "key"
    with pytest.raises(DataError):
        read(file)
    public = make(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert public.startswith(kind) and public.count(" ") == 1 and read(file) == public
    content = file.read_bytes()
    with pytest.raises(DataError):
        make(file)
    assert file.read_bytes() == content
    file.chmod(0o640)
    with pytest.raises(DataError):
        read(file)
    file.chmod(0o600)
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    ssh, plain = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    ed = ed25519.Ed25519PrivateKey.generate().private_bytes(pem, form, plain)
    p_256 = ec.generate_private_key(ec.SECP256R1()).private_bytes(pem, ssh, plain)
    for wrong in (b"no key", ed, p_256):
        file.write_bytes(wrong)
        with pytest.raises(DataError):
            read(file)


def test_the_halves_secret_is_long_and_closed_to_others(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    for length, mode, is_read in (
        (32, 0o640, True),
        (31, 0o640, False),
        (32, 0o644, False),
        (32, 0o641, False),
    ):
        file.write_bytes(b"x" * length)
        file.chmod(mode)
        if is_read:
            assert read_secret(file) == b"x" * length
            continue
        with pytest.raises(DataError):
            read_secret(file)


def test_a_state_is_worked_on_once(tmp_path: Path) -> None:
    assert not is_at_work(tmp_path)
    with only_one(tmp_path):
        assert is_at_work(tmp_path)
        with pytest.raises(DataError), only_one(tmp_path):
            pytest.fail("it works twice")
    assert not is_at_work(tmp_path)
