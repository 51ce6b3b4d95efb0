"""A registered site that floods its gateway in one way, for benchmarks/flood.py.

    python deploy/flooding_site.py WAY SITE-FOLDER SOURCE NICE

SITE-FOLDER has the site's site.toml and key, and the number of its node in a file `node`. SOURCE is the address of this
machine that connections come from, such as 127.0.0.2. It floods between a line `on` and a line `off` on its standard
input, and answers `off` with what it has sent and got, as one line of JSON. It ends with its standard input.

It is nice (19, and NICE as a session among others), and on the last core: on one machine it would take from the
coordinator's processors what in a hospital is its own. A signature of flwr's holds for five minutes, so it signs once a
minute, and its requests cost it little.
"""

import asyncio
import contextlib
import json
import os
import ssl
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.protobuf.client import PROTOBUF_MEDIA_TYPE, ProtobufRequestContext
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedskew.federation.folder import host_and_port
from site_agent.config import read_link
from site_agent.keys import read_key

AT_A_TIME = 64
"""Connections on which requests are sent."""
BODIES_AT_A_TIME = 8
HELD = 3000
"""Connections that are held."""
SLOW = 100
"""Bodies, and heads, that are sent a byte a second."""
LARGEST = 64 * 2**20
"""Bytes of the largest body that a gateway takes, by default."""
SIGNED_FOR = 60.0
"""Seconds for which a signature is used."""
GET_RUN, PULL, UPLOAD = "/v1/fleet/get-run", "/v1/fleet/pull-messages", "/v1/fleet/push-object"
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Flood:
    """What one site sends, and what became of it."""

    def __init__(self, place: Path, source: str) -> None:
        link = read_link(place / "site.toml")
        assert link.key is not None and link.ca is not None
        self.key = read_key(link.key)
        self.node = int((place / "node").read_text())
        self.host, self.port = host_and_port(link.address, "address")
        self.context = ssl.create_default_context(cafile=str(link.ca))
        self.source = source
        self.count = Counter[str]()
        """Statuses of answers; connections; bytes of bodies; what was cut."""
        self.signer = self.key
        self.head_lines = ""
        self.signed_at = -SIGNED_FOR

    def head(self, path: str, size: int) -> bytes:
        """Return the head of a request with a body of so many bytes."""
        if time.monotonic() - self.signed_at >= SIGNED_FOR:
            self.signed_at = time.monotonic()
            request = httpx.Request(
                "POST",
                f"https://{self.host}:{self.port}",
                headers={"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE},
            )
            context = ProtobufRequestContext("", GetRunRequest(), request)
            for interceptor in (
                RuntimeVersionHttpInterceptor("SuperNode"),
                NodeAuthHttpInterceptor(self.signer, self.key.public_key()),
            ):
                interceptor.intercept(context, lambda context: httpx.Response(200))
            del request.headers["content-length"]
            lines = [f"{name}: {value}\r\n" for name, value in request.headers.items()]
            self.head_lines = "".join(lines)
        return f"POST {path} HTTP/1.1\r\n{self.head_lines}content-length: {size}\r\n\r\n".encode()

    async def connect(self) -> Stream:
        """Return a connection after its TLS handshake. Raises OSError."""
        stream = await asyncio.open_connection(
            self.host, self.port, ssl=self.context, local_addr=(self.source, 0)
        )
        self.count["connections"] += 1
        return stream

    async def send(self, stream: Stream, path: str, body: bytes) -> bool:
        """Send a request, read its answer, and return whether the connection stays."""
        reader, writer = stream
        writer.write(self.head(path, len(body)))
        with contextlib.suppress(OSError):  # the answer may come before the body is sent
            for begin in range(0, len(body), 2**18):
                writer.write(body[begin : begin + 2**18])
                await writer.drain()
                self.count["body bytes"] += len(body[begin : begin + 2**18])
        head = await reader.readuntil(b"\r\n\r\n")
        self.count[head.split()[1].decode()] += 1
        lines = head.lower().split(b"\r\n")
        length = [int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length")]
        await reader.readexactly(sum(length))
        return b"connection: close" not in lines

    async def again(self, turn: Callable[[Stream], Awaitable[bool]]) -> None:
        """Take turns on a connection for ever, on a new one whenever it is cut."""
        while True:
            try:
                stream = await self.connect()
            except OSError:
                self.count["no connection"] += 1
                await asyncio.sleep(0.1)
                continue
            try:
                while await turn(stream):
                    pass
            except (OSError, asyncio.IncompleteReadError):
                self.count["cut"] += 1
            finally:
                stream[1].transport.abort()

    async def requests(self, stream: Stream) -> bool:
        """Ask for a run, then for messages."""
        question = GetRunRequest(node=Node(node_id=self.node), run_id=1).SerializeToString()
        if not await self.send(stream, GET_RUN, question):
            return False
        wanted = PullMessagesRequest(node=Node(node_id=self.node)).SerializeToString()
        return await self.send(stream, PULL, wanted)

    async def upload(self, stream: Stream, size: int) -> bool:
        """Send an object that nobody has asked for, in a body of so many bytes."""
        request = PushObjectRequest(node=Node(node_id=self.node), run_id=1, object_id="0" * 64)
        request.object_content = bytes(size - request.ByteSize())
        too_much = request.ByteSize() - size  # the field's own head
        request.object_content = bytes(len(request.object_content) - too_much)
        return await self.send(stream, UPLOAD, request.SerializeToString())

    async def hold(self, stream: Stream) -> bool:
        """Say nothing on a connection until it is cut."""
        await stream[0].readexactly(2**20)
        return False

    async def end(self, stream: Stream) -> bool:
        """Say nothing on a connection, and let it go."""
        return False

    async def slow_body(self, stream: Stream) -> bool:
        """Send a large body, a byte a second."""
        stream[1].write(self.head(UPLOAD, 2**19))
        return await self.slowly(stream, bytes(2**19))

    async def slow_head(self, stream: Stream) -> bool:
        """Send a head, a byte a second."""
        return await self.slowly(stream, self.head(GET_RUN, 0))

    async def slowly(self, stream: Stream, content: bytes) -> bool:
        """Send a byte a second until the connection is cut or there is an answer."""
        reader, writer = stream
        answer = asyncio.ensure_future(reader.readuntil(b"\r\n"))
        try:
            for begin in range(len(content)):
                if answer.done():
                    break
                writer.write(content[begin : begin + 1])
                await writer.drain()
                await asyncio.sleep(1.0)
            self.count[(await answer).split()[1].decode()] += 1
        finally:
            answer.cancel()
        return False

    def tasks(self, way: str) -> list[asyncio.Task[None]]:
        """Begin to flood in a way."""

        async def largest(stream: Stream) -> bool:
            return await self.upload(stream, LARGEST)

        async def too_large(stream: Stream) -> bool:
            return await self.upload(stream, LARGEST + 1)

        turns: dict[str, tuple[Callable[[Stream], Awaitable[bool]], int]] = {
            "requests": (self.requests, AT_A_TIME),
            "wrong-signatures": (self.requests, AT_A_TIME),
            "largest-bodies": (largest, BODIES_AT_A_TIME),
            "too-large-bodies": (too_large, BODIES_AT_A_TIME),
            "held-connections": (self.hold, HELD),
            "new-connections": (self.end, AT_A_TIME),
            "slow-bodies": (self.slow_body, SLOW),
            "slow-heads": (self.slow_head, SLOW),
        }
        if way == "wrong-signatures":
            self.signer = ec.generate_private_key(ec.SECP384R1())
        turn, number = turns[way]
        return [asyncio.ensure_future(self.again(turn)) for _ in range(number)]


def step_back(nice: str) -> None:
    """Give way to other processes of the machine, and stay on its last core."""
    os.nice(19)
    with contextlib.suppress(OSError):  # there, nice counts within a session alone
        Path("/proc/self/autogroup").write_text(nice)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


async def follow(flood: Flood, way: str) -> None:
    """Flood as the lines of the standard input say."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: None)  # connections are cut all the time
    tasks = list[asyncio.Task[None]]()
    began = 0.0
    print("ready", flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        if line.strip() == "on":
            flood.count.clear()
            began = time.monotonic()
            tasks = flood.tasks(way)
            continue
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        tasks = []
        print(json.dumps({"seconds": time.monotonic() - began, **flood.count}), flush=True)


def main() -> None:
    """Flood in the way of the command line."""
    way, place, source, nice = sys.argv[1:]
    step_back(nice)
    asyncio.run(follow(Flood(Path(place), source), way))


if __name__ == "__main__":
    main()
