"""The coordinator's certificates: what OpenSSL takes, and what is refused."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from data import DataError
from fedskew.federation import certificates
from fedskew.federation.certificates import check_server, read_certificate, write_server
from fedskew.federation.folder import begin
from tests.site_files import AGREED, Pair, certified

HOSTS = ["gateway.example.org", "10.0.0.7"]


def handshake(server: Pair, authority: Path, host: str) -> None:
    """Shake hands in memory, as a site does with the gateway."""
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(*server)
    ours = ssl.create_default_context(cafile=str(authority))
    ours.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 has it
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        ours.wrap_bio(back, there, server_hostname=host),
        theirs.wrap_bio(there, back, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


def test_the_servers_certificate_holds_for_its_hosts_and_keys_are_private(tmp_path: Path) -> None:
    authority, server = certified(tmp_path / "one", *HOSTS)
    for host in (*HOSTS, "localhost", "127.0.0.1"):
        handshake(server, authority[0], host)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, authority[0], "elsewhere.example.org")
    check_server(server[0], authority[0], HOSTS)
    assert {path.stat().st_mode & 0o777 for path in (authority[1], server[1])} == {0o600}


def test_a_key_is_written_to_no_file_that_another_user_has_put_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok: path.touch(0o666))
    with pytest.raises(FileExistsError):
        certificates.write_private(tmp_path / "ca.key", b"secret")
    assert b"secret" not in {file.read_bytes() for file in tmp_path.iterdir()}


def test_another_authority_a_missing_name_and_the_wrong_key_are_refused(tmp_path: Path) -> None:
    (authority, server), (other, _) = (
        certified(tmp_path / name, *HOSTS) for name in ("one", "two")
    )
    check_server(server[0], authority[0], HOSTS)
    for certificate, trusted, host in (
        (server[0], other[0], HOSTS[0]),
        (server[0], authority[0], "other.example.org"),
    ):
        with pytest.raises(DataError) as refused:
            check_server(certificate, trusted, [host])
        assert refused.value.where == str(certificate)
    with pytest.raises(DataError):
        write_server(HOSTS, (authority[0], other[1]), *server)


@pytest.mark.parametrize(("days", "is_valid"), [(-1, False), (396, True), (398, False)])
def test_a_certificate_out_of_its_dates_is_refused(
    tmp_path: Path, days: int, is_valid: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, server = certified(tmp_path / "one", *HOSTS)

    class Later(datetime):
        @classmethod
        def now(cls, tz: object = None) -> "Later":  # type: ignore[override]
            return datetime.now(UTC) + timedelta(days=days)  # type: ignore[return-value]

    monkeypatch.setattr(certificates, "datetime", Later)
    if is_valid:
        check_server(server[0], authority[0], HOSTS)
    else:
        with pytest.raises(DataError):
            check_server(server[0], authority[0], HOSTS)


def test_a_renewed_certificate_has_another_key_under_the_same_authority_whose_key_may_be_elsewhere(
    tmp_path: Path,
) -> None:
    key = tmp_path / "offline.key"
    address = "127.0.0.1:9999", "127.0.0.1"
    folder = begin(tmp_path / "study", AGREED, *address, authority_key=key)
    authority, usual = folder.authority
    assert key.stat().st_mode & 0o077 == 0 and not usual.exists()
    first = read_certificate(folder.server[0])
    with pytest.raises(DataError) as refused:
        folder.renew()
    assert refused.value.where == str(usual)
    assert read_certificate(folder.server[0]) == first
    folder.renew(key)
    assert read_certificate(folder.server[0]).public_key() != first.public_key()
    handshake(folder.server, authority, "127.0.0.1")
