"""The coordinator's certificates: what OpenSSL takes, and what is refused by name."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from command_line import FedSkew

from data import DataError, SettingError
from fedskew.federation import certificates
from fedskew.federation.certificates import (
    check_server,
    is_encrypted,
    read_certificate,
    write_authority,
    write_server,
)
from fedskew.federation.folder import FederationFolder, begin

HOSTS = ["gateway.example.org", "10.0.0.7"]


def certified(
    folder: Path, hosts: list[str] = HOSTS
) -> tuple[tuple[Path, Path], tuple[Path, Path]]:
    folder.mkdir()
    authority, server = (
        (folder / "ca.crt", folder / "ca.key"),
        (folder / "server.crt", folder / "server.key"),
    )
    write_authority("four hospitals", *authority)
    write_server("four hospitals", hosts, authority, *server)
    return authority, server


def handshake(server: tuple[Path, Path], authority: Path, host: str) -> None:
    """Shake hands in memory, as a site does with the gateway."""
    theirs, ours = (
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
        ssl.create_default_context(cafile=str(authority)),
    )
    theirs.load_cert_chain(*server)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        theirs.wrap_bio(there, back, server_side=True),
        ours.wrap_bio(back, there, server_hostname=host),
    ]
    for _ in range(4):
        for end in ends[::-1]:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


def test_the_servers_certificate_holds_for_its_hosts_and_keys_are_private(tmp_path: Path) -> None:
    authority, server = certified(tmp_path / "one")
    for host in (*HOSTS, "localhost", "127.0.0.1"):
        handshake(server, authority[0], host)
    with pytest.raises(ssl.SSLCertVerificationError, match="match"):
        handshake(server, authority[0], "elsewhere.example.org")
    check_server(server[0], authority[0], HOSTS)
    assert {path.stat().st_mode & 0o777 for path in (authority[1], server[1])} == {0o600}


def test_a_renewed_certificate_has_another_key_under_the_same_authority(tmp_path: Path) -> None:
    authority, server = certified(tmp_path / "one")
    first = read_certificate(server[0])
    write_server("four hospitals", HOSTS, authority, *server)
    assert read_certificate(server[0]).public_key() != first.public_key()
    handshake(server, authority[0], HOSTS[0])


def test_another_authority_a_missing_name_and_the_wrong_key_are_refused_by_name(
    tmp_path: Path,
) -> None:
    (authority, server), (other, _) = certified(tmp_path / "one"), certified(tmp_path / "two")
    with pytest.raises(DataError, match=r"server.crt: is not of the authority .*two/ca.crt"):
        check_server(server[0], other[0], HOSTS)
    with pytest.raises(DataError, match=r"does not hold for other.example.org: renew it"):
        check_server(server[0], authority[0], ["other.example.org"])
    with pytest.raises(DataError, match=r"two/ca.key: is not the key of .*one/ca.crt"):
        write_server("four hospitals", HOSTS, (authority[0], other[1]), *server)
    server[0].write_text("no certificate")
    with pytest.raises(DataError, match=r"server.crt: cannot be read as a certificate"):
        check_server(server[0], authority[0], HOSTS)


@pytest.mark.parametrize("days", [-1, 398])
def test_a_certificate_out_of_its_dates_is_refused(
    tmp_path: Path, days: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, server = certified(tmp_path / "one")

    class Later(datetime):
        @classmethod
        def now(cls, tz: object = None) -> "Later":  # type: ignore[override]
            return datetime.now(UTC) + timedelta(days=days)  # type: ignore[return-value]

    monkeypatch.setattr(certificates, "datetime", Later)
    with pytest.raises(
        DataError, match=r"(ca|server).crt: holds from \d{4}-\d\d-\d\d to .*: renew it"
    ):
        check_server(server[0], authority[0], HOSTS)


# ---- the authority's key away from the coordinator's machine ---------------------------------------------------------


def begun(folder: Path, key: Path, **more: Any) -> FederationFolder:
    """Make a federation whose authority's key is written elsewhere."""
    return begin(
        folder, "two", ["a", "b"], "1x8x8", [0.5], [0.5], None, "127.0.0.1:9999", "127.0.0.1",
        authority_key=key, **more,
    )  # fmt: skip


def test_the_authoritys_key_may_be_kept_elsewhere(tmp_path: Path) -> None:
    key = tmp_path / "offline.key"
    folder = begun(tmp_path / "coordinator", key)
    certificate, usual = folder.authority
    assert key.stat().st_mode & 0o077 == 0 and not usual.exists()
    check_server(folder.server[0], certificate, ["127.0.0.1"])
    before = folder.server[0].read_bytes()
    with pytest.raises(DataError, match=r"cannot be read as the authority's key") as refused:
        folder.renew()
    assert refused.value.where == str(usual) and folder.server[0].read_bytes() == before
    folder.renew(key)
    assert folder.server[0].read_bytes() != before
    check_server(folder.server[0], certificate, ["127.0.0.1"])
    with pytest.raises(SettingError, match="is there already"):
        begun(tmp_path / "another", key)
    assert not (tmp_path / "another").exists(), "nothing is written then"


def test_an_encrypted_key_needs_its_passphrase(
    tmp_path: Path, fedskew: FedSkew, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, key = tmp_path / "coordinator", tmp_path / "offline.key"
    words = ["federation", "new", folder, "--name", "two", "--address", "127.0.0.1:9999"]
    words += ["--classes", "a,b", "--input-shape", "1x8x8", "--authority-key", key, "--encrypt"]
    monkeypatch.setenv("FEDSKEW_PASSPHRASE", "correct horse")
    assert fedskew(*words)[0] == 0
    assert is_encrypted(key) and b"ENCRYPTED" in key.read_bytes()
    renewal = ["federation", "renew", str(folder), "--authority-key", str(key)]
    monkeypatch.setenv("FEDSKEW_PASSPHRASE", "wrong horse")
    status, _, errors = fedskew(*renewal)
    assert status == 2 and "is encrypted, and this is not its passphrase" in errors
    monkeypatch.setenv("FEDSKEW_PASSPHRASE", "correct horse")
    assert fedskew(*renewal)[0] == 0
    other, _ = certified(tmp_path / "plain")
    assert not is_encrypted(other[1])
