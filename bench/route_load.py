"""Load generator for route queries of a nameserver, over raw loopback sockets.

It is independent of the server under test: it sends prepared frames with a fixed number in flight
per connection, and counts responses by their length prefix.
"""

import json
import selectors
import socket
import struct
import time
import zlib
from dataclasses import dataclass

_HEAD = struct.Struct(">II")
_GET_ROUTE = 105
_REGISTER_BROKER = 103
_CLIENT_VERSION = 399


def frame(code: int, ext_fields: dict[str, str], body: bytes = b"") -> bytes:
    """A request as the Java client writes it, with a JSON header."""
    header = json.dumps(
        {
            "code": code,
            "extFields": ext_fields,
            "flag": 0,
            "language": "JAVA",
            "opaque": 7,
            "serializeTypeCurrentRPC": "JSON",
            "version": _CLIENT_VERSION,
        },
        separators=(",", ":"),
    ).encode()
    return _HEAD.pack(4 + len(header) + len(body), len(header)) + header + body


def route_query(topic: str) -> bytes:
    return frame(_GET_ROUTE, {"topic": topic})


def read_answer(sock: socket.socket) -> bytes:
    (length,) = struct.unpack(">I", _read_exactly(sock, 4))
    return _read_exactly(sock, length)


def _read_exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise ConnectionError(f"closed after {len(data)} of {size} bytes")
        data += piece
    return bytes(data)


def register_broker(sock: socket.socket, number: int, topics: list[str]) -> None:
    """Register one broker with `topics`, as an Apache broker does at start."""
    body = json.dumps(
        {
            "filterServerList": [],
            "topicConfigSerializeWrapper": {
                "dataVersion": {"counter": 1, "timestamp": 1_700_000_000_000},
                "topicConfigTable": {
                    topic: {
                        "order": False,
                        "perm": 6,
                        "readQueueNums": 8,
                        "topicFilterType": "SINGLE_TAG",
                        "topicName": topic,
                        "topicSysFlag": 0,
                        "writeQueueNums": 8,
                    }
                    for topic in topics
                },
            },
        },
        separators=(",", ":"),
    ).encode()
    fields = {
        "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
        "brokerAddr": f"127.0.0.1:{20000 + 4 * number}",
        "brokerId": "0",
        "brokerName": f"broker-{number:03}",
        "clusterName": "DefaultCluster",
        "compressed": "false",
        "haServerAddr": f"127.0.0.1:{20001 + 4 * number}",
    }
    sock.sendall(frame(_REGISTER_BROKER, fields, body))
    answer = read_answer(sock)
    if b'"code":0' not in answer:
        raise RuntimeError(f"registration refused: {answer[:300]!r}")


@dataclass(frozen=True, slots=True)
class Load:
    """The results of one round."""

    queries: int
    bytes_received: int
    wall_s: float


class _Stream:
    """One connection with a fixed number of queries in flight."""

    def __init__(self, port: int, queries: list[bytes], window: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._queries, self._next = queries, 0
        self._tail = b""
        self.send(window)

    def send(self, count: int) -> None:
        picked = [self._queries[(self._next + i) % len(self._queries)] for i in range(count)]
        self._next += count
        self.sock.sendall(b"".join(picked))

    def receive(self, size: int) -> tuple[int, int]:
        piece = self.sock.recv(size)
        if not piece:
            raise ConnectionError("the nameserver closed the connection")
        data, at, count = self._tail + piece, 0, 0
        while len(data) - at >= 4:
            stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if stop > len(data):
                break
            at, count = stop, count + 1
        self._tail = data[at:]
        return count, len(piece)


def run(port: int, topics: list[str], *, connections: int, window: int, duration_s: float) -> Load:
    """Query routes of `topics` round robin until the time is over."""
    queries = [route_query(topic) for topic in topics]
    selector = selectors.DefaultSelector()
    for number in range(connections):
        shift = number * len(queries) // connections
        stream = _Stream(port, queries[shift:] + queries[:shift], window)
        selector.register(stream.sock, selectors.EVENT_READ, stream)
    started = time.perf_counter()
    deadline = started + duration_s
    answers = received = 0
    while time.perf_counter() < deadline:
        for key, _ in selector.select(timeout=1.0):
            ready: _Stream = key.data
            count, size = ready.receive(1 << 18)
            received += size
            if count:
                answers += count
                ready.send(count)
    wall_s = time.perf_counter() - started
    for key in list(selector.get_map().values()):
        key.data.sock.close()
    selector.close()
    return Load(answers, received, wall_s)
