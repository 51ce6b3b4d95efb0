"""`fedskew-site check --online`: the connection to the coordinator."""

import http.client
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from cryptography import x509

from data import DataError
from data.text import is_whole
from site_agent.config import Link, Site
from site_agent.keys import read_key
from site_agent.preflight import Row

SECONDS = 10.0
FAST, SLOW = 5, 305
"""Seconds by which this machine's clock may be ahead and behind; flwr ends a node beyond."""


def online(site: Site, link: Link) -> Iterator[Row]:
    """Look at proxy, TLS, certificate, clock and key; what hangs on a line that fails is left out."""
    host, _, port = link.address.rpartition(":")
    if not host or not is_whole(port):
        yield Row(
            "address", False, f"{link.address!r}: link.address in site.toml must be HOST:PORT"
        )
        return
    proxy = "" if proxy_bypass(host) else getproxies().get("https", "")
    bypass = (os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or "").split(",")
    fine = not getproxies() or "127.0.0.1" in bypass
    seen = f"{proxy or 'none'} for {host}"
    yield Row("proxy", True, seen if fine else f"{seen}; loopback goes past it, as `start` sees to")
    try:
        context = ssl.create_default_context(cafile=str(link.ca))
        certificate, ours, theirs = shake_hands(host.strip("[]"), int(port), proxy, context)
    except ssl.SSLCertVerificationError as error:
        yield Row("tls", False, f"{link.address}: {explain(error)}")
        return
    except (OSError, http.client.HTTPException, ValueError) as error:
        yield Row("tls", False, f"{link.address}: {unreachable(error)}")
        return
    days = (certificate.not_valid_after_utc - datetime.now(UTC)).days
    left = f"certificate until {certificate.not_valid_after_utc:%Y-%m-%d}, {days} days"
    yield Row(
        "tls", True, f"{link.address}: {left}{'; ask for a new one soon' if days < 30 else ''}"
    )
    ahead = (ours - theirs).total_seconds() if theirs else 0.0
    set_it = f"; must be {-SLOW} to {FAST} s: let a time service set this machine's clock"
    holds = -SLOW < ahead < FAST
    yield Row("clock", holds, f"{ahead:+.0f} s against the coordinator's{'' if holds else set_it}")
    if holds:
        yield known(site, link)
    else:  # the coordinator refuses every signature by such a clock, which says nothing about the key
        yield Row("key known", False, "not asked: the clock comes first")


def shake_hands(
    host: str, port: int, proxy: str, context: ssl.SSLContext
) -> tuple[x509.Certificate, datetime, datetime | None]:
    """Return the coordinator's certificate, our time and theirs. Raises OSError, ssl's errors among them."""
    if proxy:
        way = urlsplit(proxy if "//" in proxy else f"//{proxy}")
        connection = http.client.HTTPSConnection(
            way.hostname or "", way.port or 8080, timeout=SECONDS, context=context
        )
        connection.set_tunnel(host, port)
    else:
        connection = http.client.HTTPSConnection(host, port, timeout=SECONDS, context=context)
    with closing(connection):
        connection.connect()
        assert isinstance(connection.sock, ssl.SSLSocket)
        certificate = x509.load_der_x509_certificate(
            connection.sock.getpeercert(binary_form=True) or b""
        )
        connection.request("GET", "/")
        stamp = connection.getresponse().headers.get("Date")
        return certificate, datetime.now(UTC), parsedate_to_datetime(stamp) if stamp else None


def explain(error: ssl.SSLCertVerificationError) -> str:
    """Return what is wrong with a certificate, and who is to do what."""
    expired = (10,)
    not_yet = (9,)
    unknown = (18, 19, 20, 21, 7)
    if error.verify_code in expired:
        now = datetime.now(UTC)
        return (
            f"the certificate has expired by this machine's clock ({now:%Y-%m-%d}): set the clock where that is wrong, "
            "else the coordinator must renew the certificate"
        )
    if error.verify_code in not_yet:
        return "the certificate is not yet valid; look at this machine's clock first"
    if error.verify_code in unknown:
        return "the certificate is of another authority than link.ca; ask the coordinator for this federation's ca.crt"
    return f"the certificate does not hold: {error.verify_message}; link.address must be a name that is in it"


def unreachable(error: Exception) -> str:
    """Return why nothing can be reached, and what to look at."""
    if isinstance(error, ssl.SSLError):
        return "answers, but not with TLS (plain HTTP?); a SuperNode would retry for ever without a word: wrong port?"
    if isinstance(error, socket.gaierror):
        return "no machine has this name; look at link.address and at the name service"
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there; is the coordinator's gateway running?"
    if isinstance(error, TimeoutError):
        return "no answer; a firewall? ask for outgoing TCP to this port"
    return f"{type(error).__name__}: {error}"


def known(site: Site, link: Link) -> Row:
    """Ask whether the coordinator knows the node key, by signing in and out again."""
    from site_agent.flower_internals import (
        ActivateNodeRequest,
        DeactivateNodeRequest,
        FleetHttpClient,
        NodeAuthHttpInterceptor,
        public_key_to_bytes,
    )

    assert link.key and link.ca
    try:
        private = read_key(link.key)
    except DataError as error:
        return Row("key known", False, str(error))
    public = private.public_key()
    signed = NodeAuthHttpInterceptor(private, public)
    with FleetHttpClient.from_server_address(
        link.address, False, link.ca.read_bytes(), [signed]
    ) as client:
        try:
            request = ActivateNodeRequest(
                public_key=public_key_to_bytes(public), heartbeat_interval=30
            )
            node = client.ActivateNode(request).node_id
            client.DeactivateNode(DeactivateNodeRequest(node_id=node))
        except Exception as error:  # of httpx, which flwr calls
            answer = getattr(error, "response", None)
            if answer is None:
                return Row("key known", False, unreachable(error))
            return refused(answer.status_code)
    return Row("key known", True, f"as {site.name}")


def refused(code: int) -> Row:
    """Return what a refusal of the key means."""
    if code in (502, 503, 504):
        return Row(
            "key known",
            False,
            f"the SuperLink behind the gateway does not answer ({code}); tell the coordinator",
        )
    if code in (401, 403):
        return Row(
            "key known",
            False,
            f"refused ({code}): send the lines of `fedskew-site key` to the coordinator",
        )
    text = f"refused ({code}): not registered, or this site's SuperNode is at work, or was killed in the last minute"
    return Row("key known", False, text)
