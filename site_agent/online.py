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
UNKNOWN_KEY = (403,)
"""The gateway's status for a key that is no site's, or a signature of another time. The SuperLink's own is 401."""
NO_ANSWER = (502, 503, 504)
"""Statuses where nobody behind the gateway, or a proxy, has answered."""
FAST, SLOW = 5, 305
"""Seconds by which this machine's clock may be ahead and behind; flwr ends a node beyond."""


def online(site: Site, link: Link) -> Iterator[Row]:
    """Check proxy, TLS, certificate, clock and key; checks that need one that fails are left out."""
    host, _, port = link.address.rpartition(":")
    if not host or not is_whole(port):
        text = f"{link.address!r}: link.address in site.toml must be HOST:PORT"
        yield Row("address", False, text)
        return
    proxy = "" if proxy_bypass(host) else getproxies().get("https", "")
    yield proxy_row(host, proxy)
    try:
        context = ssl.create_default_context(cafile=str(link.ca))
        certificate, ours, theirs = shake_hands(host.strip("[]"), int(port), proxy, context)
    except ssl.SSLCertVerificationError as error:
        yield Row("tls", False, f"{link.address}: {explain(error)}")
        return
    except (OSError, http.client.HTTPException, ValueError) as error:
        yield Row("tls", False, f"{link.address}: {unreachable(error)}")
        return
    last = certificate.not_valid_after_utc
    days = (last - datetime.now(UTC)).days
    text = f"{link.address}: certificate until {last:%Y-%m-%d}, {days} days"
    if days < 30:
        text += "; ask for a new one soon"
    yield Row("tls", True, text)

    ahead = (ours - theirs).total_seconds() if theirs else 0.0
    is_right = -SLOW < ahead < FAST
    text = f"{ahead:+.0f} s against the coordinator's"
    if not is_right:
        text += f"; must be {-SLOW} to {FAST} s: let a time service set this machine's clock"
    yield Row("clock", is_right, text)
    if is_right:
        yield known(site, link)
    else:
        # With such a clock the coordinator refuses every signature, whatever the key.
        yield Row("key known", False, "not asked: the clock comes first")


def proxy_row(host: str, proxy: str) -> Row:
    """Return the row about the proxy to a host."""
    text = f"{proxy or 'none'} for {host}"
    bypass = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    if getproxies() and "127.0.0.1" not in bypass.split(","):
        text += "; loopback goes past it, as `start` sees to"
    return Row("proxy", True, text)


def shake_hands(
    host: str,
    port: int,
    proxy: str,
    context: ssl.SSLContext,
) -> tuple[x509.Certificate, datetime, datetime | None]:
    """Return the coordinator's certificate, our time and theirs. Raises OSError, ssl's errors among them."""
    if proxy:
        url = urlsplit(proxy if "//" in proxy else f"//{proxy}")
        connection = http.client.HTTPSConnection(
            url.hostname or "",
            url.port or 8080,
            timeout=SECONDS,
            context=context,
        )
        connection.set_tunnel(host, port)
    else:
        connection = http.client.HTTPSConnection(host, port, timeout=SECONDS, context=context)
    with closing(connection):
        connection.connect()
        assert isinstance(connection.sock, ssl.SSLSocket)
        der = connection.sock.getpeercert(binary_form=True) or b""
        certificate = x509.load_der_x509_certificate(der)
        connection.request("GET", "/")
        stamp = connection.getresponse().headers.get("Date")
        ours = datetime.now(UTC)
        theirs = parsedate_to_datetime(stamp) if stamp else None
        return certificate, ours, theirs


def explain(error: ssl.SSLCertVerificationError) -> str:
    """Return what is wrong with a certificate, and who is to do what."""
    # OpenSSL's X509_V_ERR codes.
    expired = (10,)
    not_yet = (9,)
    unknown = (18, 19, 20, 21, 7)  # self-signed, no or another issuer, a wrong signature
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
        link.address,
        False,
        link.ca.read_bytes(),
        [signed],
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


def membership(link: Link) -> str:
    """Return whether the coordinator takes this site's key, in words, without a change to its SuperNode.

    Raises DataError for a key that cannot be read.
    """
    from site_agent.flower_internals import (
        FleetHttpClient,
        NodeAuthHttpInterceptor,
        SendNodeHeartbeatRequest,
    )

    assert link.key and link.ca
    private = read_key(link.key)
    signed = NodeAuthHttpInterceptor(private, private.public_key())
    try:
        fleet = FleetHttpClient.from_server_address(
            link.address,
            False,
            link.ca.read_bytes(),
            [signed],
        )
    except ValueError:
        raise DataError("holds no certificate", where=str(link.ca)) from None
    with fleet as client:
        try:
            # The heartbeat of no node: the gateway refuses a key that it does not know before it looks at the node.
            client.SendNodeHeartbeat(SendNodeHeartbeatRequest(heartbeat_interval=30))
        except Exception as error:  # of httpx, which flwr calls
            answer = getattr(error, "response", None)
            if answer is None:
                return "not asked: no coordinator answers; `fedskew-site check --online` says why"
            if answer.status_code in UNKNOWN_KEY:
                return (
                    f"no: the coordinator refuses this site's key ({answer.status_code}). It was revoked or replaced, "
                    "or this machine's clock is wrong, which `fedskew-site check --online` looks at"
                )
            if answer.status_code in NO_ANSWER:
                return f"not asked: the coordinator's gateway has no answer ({answer.status_code})"
    return "yes"


def refused(code: int) -> Row:
    """Return what a refusal of the key means."""
    if code in NO_ANSWER:
        text = f"the SuperLink behind the gateway does not answer ({code}); tell the coordinator"
    elif code in (401, 403):
        text = f"refused ({code}): send the lines of `fedskew-site key` to the coordinator"
    else:
        why = (
            "not registered, or this site's SuperNode is at work, or was killed in the last minute"
        )
        text = f"refused ({code}): {why}"
    return Row("key known", False, text)
