"""The coordinator's certificates: an authority of the federation's own, and what the SuperLink shows."""

import ipaddress
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from data import DataError
from data.files import owner_only

AUTHORITY_DAYS, SERVER_DAYS = 3650, 397
"""Days that a certificate holds; of a server's, no common client takes more."""
CLOCKS = timedelta(minutes=10)
"""By how much the sites' clocks may be behind on the first day."""
LOCAL = ("localhost", "127.0.0.1", "::1")


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    draft = path.with_name(path.name + ".tmp")
    draft.unlink(missing_ok=True)
    # A new file with its rights from the start, so that at no moment another user can open it.
    with owner_only(), draft.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def write_authority(name: str, certificate: Path, key: Path) -> None:
    """Make the federation's certificate authority, whose key stays with the coordinator (ECDSA P-384)."""
    private = ec.generate_private_key(ec.SECP384R1())
    subject = _named(f"{name[:40]} (authority)")
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    extensions = {x509.BasicConstraints(ca=True, path_length=0): True, usage: True}
    _certify(private, subject, AUTHORITY_DAYS, extensions, (subject, private), certificate, key)


def write_server(
    hosts: Sequence[str],
    authority: tuple[Path, Path],
    certificate: Path,
    key: Path,
) -> None:
    """Make, or renew, the server's key and certificate for its hosts, names or addresses, and for this machine.

    `authority` is the authority's certificate and key. Raises DataError where these cannot be read or belong to
    different authorities.
    """
    issuer = read_certificate(authority[0])
    try:
        signer = serialization.load_pem_private_key(authority[1].read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        rule = "cannot be read as the authority's key"
        raise DataError(rule, where=str(authority[1])) from error
    if (
        not isinstance(signer, ec.EllipticCurvePrivateKey)
        or signer.public_key() != issuer.public_key()
    ):
        raise DataError(f"is not the key of {authority[0]}", where=str(authority[1]))
    private = ec.generate_private_key(ec.SECP384R1())
    all_hosts = dict.fromkeys((*hosts, *LOCAL))
    extensions = {
        x509.BasicConstraints(ca=False, path_length=None): True,
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]): False,
        x509.SubjectAlternativeName([_host(host) for host in all_hosts]): False,
    }
    subject = _named(next(iter(all_hosts))[:40])
    issued = issuer.subject, signer
    _certify(private, subject, SERVER_DAYS, extensions, issued, certificate, key)


def read_certificate(path: Path) -> x509.Certificate:
    """Return a certificate in PEM form. Raises DataError naming the file where there is none."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError("cannot be read as a certificate", where=str(path)) from error


def check_server(certificate: Path, authority: Path, hosts: Sequence[str]) -> None:
    """Raise DataError where the server's certificate is of another authority, out of date, or lacks one of its hosts.

    Hosts are compared as they are written.
    """
    signed = read_certificate(certificate)
    issuer = read_certificate(authority)
    try:
        signed.verify_directly_issued_by(issuer)
    except Exception as error:  # cryptography: ValueError, TypeError or InvalidSignature
        rule = f"is not of the authority {authority}"
        raise DataError(rule, where=str(certificate)) from error
    now = datetime.now(UTC)
    for path, shown in ((authority, issuer), (certificate, signed)):
        first, last = shown.not_valid_before_utc, shown.not_valid_after_utc
        if not first <= now <= last:
            rule = f"holds from {first:%Y-%m-%d} to {last:%Y-%m-%d}, and it is {now:%Y-%m-%d}"
            raise DataError(rule, where=str(path), remedy="renew it")
    held = signed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    for host in hosts:
        if _host(host) not in held:
            raise DataError(f"does not hold for {host}", where=str(certificate), remedy="renew it")


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certify(
    private: ec.EllipticCurvePrivateKey,
    subject: x509.Name,
    days: int,
    extensions: Mapping[x509.ExtensionType, bool],
    issuer: tuple[x509.Name, ec.EllipticCurvePrivateKey],
    certificate: Path,
    key: Path,
) -> None:
    """Write a private key, and its certificate; `extensions` says of each whether it is critical."""
    now = datetime.now(UTC)
    issuer_name, signer = issuer
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer_name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS)
        .not_valid_after(now + timedelta(days=days))
    )
    # Strict verification, the default from Python 3.13 on, refuses certificates without key identifiers (RFC 5280).
    own_key = x509.SubjectKeyIdentifier.from_public_key(private.public_key())
    signing_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    for extension, is_critical in {**extensions, own_key: False, signing_key: False}.items():
        builder = builder.add_extension(extension, is_critical)
    pem = serialization.Encoding.PEM
    pkcs8 = serialization.PrivateFormat.PKCS8
    write_private(key, private.private_bytes(pem, pkcs8, serialization.NoEncryption()))
    certificate.write_bytes(builder.sign(signer, hashes.SHA384()).public_bytes(pem))


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
