"""Requests to a server with JSON headers, written and read without any code under test."""

import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass

GET_ROUTEINFO_BY_TOPIC = 105
GET_BROKER_CLUSTER_INFO = 106

V4_9_3, V4_9_7, V5_5_0 = 395, 403, 513
"""Versions in the header of clients of these releases; from 4.9.4 on they read strict JSON."""

SUCCESS = 0
UPDATE_AND_CREATE_TOPIC = 17
TOPIC_NOT_EXIST = 17


@dataclass(frozen=True, slots=True)
class Answer:
    """A response: code, remark, header fields and body."""

    code: int
    remark: str | None
    fields: dict[str, str]
    body: bytes


def ask_server(
    address: str,
    request_code: int,
    fields: Mapping[str, str] | None = None,
    *,
    body: bytes = b"",
    client_version: int = V4_9_7,
    timeout_s: float = 30,
) -> Answer:
    """One request over a connection of its own.

    The format of some responses depends on the version of the client.
    """
    header = {
        "code": request_code,
        "extFields": fields or {},
        "flag": 0,
        "language": "JAVA",
        "opaque": 1,
        "serializeTypeCurrentRPC": "JSON",
        "version": client_version,
    }
    encoded = json.dumps(header).encode()
    lengths = struct.pack(">II", 4 + len(encoded) + len(body), len(encoded))
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=timeout_s) as connection:
        connection.sendall(lengths + encoded + body)
        (length,) = struct.unpack(">I", receive(connection, 4))
        frame = receive(connection, length)
    stop = 4 + int.from_bytes(frame[1:4], "big")
    answer = json.loads(frame[4:stop])
    return Answer(answer["code"], answer.get("remark"), answer.get("extFields") or {}, frame[stop:])


def create_topic(address: str, topic: str, queue_count: int = 4) -> None:
    """A topic of a broker, for messages of every kind."""
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queue_count),
        "writeQueueNums": str(queue_count), "perm": "6", "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    answer = ask_server(address, UPDATE_AND_CREATE_TOPIC, fields)
    assert answer.code == SUCCESS, answer


def receive(connection: socket.socket, size_bytes: int) -> bytes:
    received = b""
    while len(received) < size_bytes:
        part = connection.recv(size_bytes - len(received))
        if not part:
            raise ConnectionError(f"closed after {len(received)} of {size_bytes} bytes")
        received += part
    return received


def is_registered(namesrv: str, broker_address: str) -> bool:
    """Whether the broker is registered with a nameserver."""
    try:
        answer = ask_server(namesrv, GET_BROKER_CLUSTER_INFO)
    except OSError:
        return False
    return f'"{broker_address}"'.encode() in answer.body
