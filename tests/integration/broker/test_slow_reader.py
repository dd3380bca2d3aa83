"""A consumer that requests more than it reads gets every response, on every path."""

import asyncio
import socket
from pathlib import Path

from tests.support.brokers import bodies_in, cluster, pull_fields
from tests.support.framing import split

from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command, decode, encode
from tianzhou.remoting.address import parse_address

PULL_COUNT = 60
BODY_BYTES = 4096
DEADLINE_S = 60


async def test_all_responses_arrive_whole_and_in_order(tmp_path: Path) -> None:
    """The responses exceed the socket buffers, so most are sent in parts."""
    bodies = [b"%d" % number + bytes(BODY_BYTES) for number in range(32)]
    requests = [
        encode(
            Command(
                code=RequestCode.PULL_MESSAGE, opaque=number, ext_fields=pull_fields("g", "t", 0, 0)
            )
        )
        for number in range(PULL_COUNT)
    ]
    async with cluster(tmp_path) as it, asyncio.timeout(DEADLINE_S):
        for body in bodies:
            await it.peer.send("t", body)
        assert bodies_in(await it.peer.pull("g", "t", 0, 0)) == bodies
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            reader.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(reader, parse_address(it.broker.address))
            await loop.sock_sendall(reader, b"".join(requests))
            answers: list[Command] = []
            received = b""
            while len(answers) < PULL_COUNT:
                piece = await loop.sock_recv(reader, 1 << 20)
                assert piece, "the broker hung up"
                received += piece
                frames, rest = split(received)
                answers += [decode(received[start:stop]) for start, stop in frames]
                received = received[rest:]
    assert [answer.opaque for answer in answers] == list(range(PULL_COUNT))
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    assert all(bodies_in(answer) == bodies for answer in answers)
