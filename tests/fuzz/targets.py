"""Every decoder of bytes that come from outside, each with real input to start from."""

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from tests.fuzz import feed_bench, guard_bench
from tests.support import framing, registration
from tests.support.header_table import REQUEST_HEADERS
from tianzhou.ha.authority import etcd_answers
from tianzhou.ha.authority.http_response import ResponseDecoder
from tianzhou.ha.authority.json_documents import DocumentSplitter
from tianzhou.protocol import command, fastjson, kernel, properties
from tianzhou.protocol.bodies import codec as bodies
from tianzhou.protocol.bodies.route import TopicRouteData
from tianzhou.protocol.bodies.topics import TopicConfigTable
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import HeaderEncoding
from tianzhou.protocol.headers.codec import decode as decode_fields
from tianzhou.protocol.records import batch, compression, message_id, record
from tianzhou.protocol.records.compression import CompressionType
from tianzhou.protocol.version import V4_9_4, V5_0_0

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
UNPACKED_LIMIT_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Target:
    """One decoder and the inputs that mutation starts from."""

    name: str
    decode: Callable[[bytes], object]
    corpus: Callable[[], tuple[bytes, ...]]


# -- corpora ---------------------------------------------------------------------------------------


def _lines(pattern: str) -> list[dict[str, str]]:
    lines = [
        json.loads(line)
        for path in sorted(GOLDEN.glob(pattern))
        for line in path.read_text().splitlines()
    ]
    assert lines, f"no captured bytes in {pattern}"
    return lines


@cache
def frames() -> tuple[bytes, ...]:
    return tuple(bytes.fromhex(line["hex"]) for line in _lines("frames-*.jsonl"))


@cache
def records() -> tuple[bytes, ...]:
    return tuple(bytes.fromhex(line["hex"]) for line in _lines("records-*.jsonl"))


@cache
def commands() -> tuple[command.Command, ...]:
    return tuple(command.decode(frame) for frame in frames())


@cache
def json_bodies() -> tuple[bytes, ...]:
    return tuple(c.body for c in commands() if c.body[:1] in (b"{", b"["))


@cache
def batches() -> tuple[bytes, ...]:
    return tuple(c.body for c in commands() if c.code == RequestCode.SEND_BATCH_MESSAGE)


@cache
def property_texts() -> tuple[bytes, ...]:
    texts = [c.fields["i"].encode() for c in commands() if "i" in c.fields]
    assert texts
    return tuple(texts)


@cache
def registrations() -> tuple[bytes, ...]:
    """Registration bodies in the form that travels compressed, here inflated."""
    plain = (
        registration.decode(c.body, compressed=False, broker_version=c.version)
        for c in commands()
        if c.code == RequestCode.REGISTER_BROKER and c.fields.get("compressed") == "false"
    )
    packed = (registration.encode(b, compressed=True, broker_version=V5_0_0) for b in plain)
    return tuple(zlib.decompress(body) for body in packed)


@cache
def raw_registrations() -> tuple[bytes, ...]:
    return tuple(zlib.compress(body) for body in registrations())


@cache
def headers(encoding: int) -> tuple[bytes, ...]:
    """The bare headers of one encoding."""
    chosen = (frame for frame in frames() if frame[4] == encoding)
    return tuple(frame[8 : 8 + int.from_bytes(frame[5:8], "big")] for frame in chosen)


@cache
def packed() -> tuple[bytes, ...]:
    body = b"a body that repeats itself, " * 40
    return tuple(bytes([kind]) + compression.compress(body, kind) for kind in CompressionType)


def ids() -> tuple[bytes, ...]:
    return (
        b"7F0000010000271100000000000004D2",
        b"000000000000000000000000000000010000271100000000000004D2",
        b"7F0000010B4C18B4AAC2000000000001",
    )


def gateway_responses() -> tuple[bytes, ...]:
    """As etcd 3.4 and what stands before it answer, without unrelated headers."""
    return (
        b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"a":"b"}',
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b'7\r\n{"a":1}\r\nA;name=value\r\n\n{"b":"c"}\r\n0\r\n\r\n',
        b"HTTP/1.1 412 Precondition Failed\r\nTrailer: Grpc-Trailer-Content-Type\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n0\r\nGrpc-Trailer-Content-Type: x\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 400 Bad Request\r\n\r\nto the end",
    )


_GATEWAY_HEADER = b'"header":{"cluster_id":"12","member_id":"13","revision":"3","raft_term":"2"}'


def gateway_answers() -> tuple[bytes, ...]:
    return (
        b"{" + _GATEWAY_HEADER + b',"succeeded":true,"responses":[{"response_range":{"header":'
        b'{"revision":"3"},"kvs":[{"key":"YQ==","mod_revision":"3","lease":"7","value":"Yg=="}]}}]}',
        b'{"result":{' + _GATEWAY_HEADER + b',"created":true}}\n{"result":{' + _GATEWAY_HEADER
        + b',"events":[{"kv":{"key":"YQ==","mod_revision":"3"}},{"type":"DELETE"}]}}',
        b'{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader"}}',
        b'{"error":"etcdserver: no leader","message":"etcdserver: no leader","code":14}',
    )  # fmt: skip


# -- decoders --------------------------------------------------------------------------------------


def split(data: bytes) -> object:
    spans, rest = framing.split(data)
    assert 0 <= rest <= len(data)
    assert all(0 <= start < stop <= rest for start, stop in spans)
    return spans


def framed(header: bytes, encoding: int) -> bytes:
    """A frame with valid lengths, so that only the header is invalid."""
    headline = encoding << 24 | len(header)
    return (4 + len(header)).to_bytes(4, "big") + headline.to_bytes(4, "big") + header


def json_header(data: bytes) -> object:
    return command.decode(framed(data, HeaderEncoding.JSON))


def binary_header(data: bytes) -> object:
    return command.decode(framed(data, HeaderEncoding.ROCKETMQ))


def typed_header(data: bytes) -> object:
    """The typed header for the code in a binary header."""
    decoded = command.decode(framed(data, HeaderEncoding.ROCKETMQ))
    try:
        header_type = REQUEST_HEADERS[RequestCode(decoded.code)]
    except (ValueError, KeyError):
        return None
    return decode_fields(header_type, decoded.fields)


def one_record(data: bytes) -> object:
    return record.decode_record(data, 0, check_crc=False)


def pull_reply(data: bytes) -> object:
    return record.decode_records(data, check_crc=True)


def scan(data: bytes) -> object:
    return list(record.scan_records(data))


def property_text(data: bytes) -> object:
    return properties.decode(data.decode("utf-8", "replace"))


def registration_body(data: bytes) -> object:
    version = V5_0_0 if len(data) % 2 else V4_9_4
    return registration.decode(zlib.compress(data, 1), compressed=True, broker_version=version)


def registration_raw(data: bytes) -> object:
    return registration.decode(data, compressed=True, broker_version=V5_0_0)


def unpack(data: bytes) -> object:
    kind = CompressionType(data[0]) if data[:1] in (b"\1", b"\2", b"\3") else CompressionType.ZLIB
    unpacked = compression.decompress(data[1:], kind, UNPACKED_LIMIT_BYTES)
    assert len(unpacked) <= UNPACKED_LIMIT_BYTES
    return unpacked


def offset_id(data: bytes) -> object:
    return message_id.decode_offset_id(data.decode("latin-1"))


def route_body(data: bytes) -> object:
    return bodies.decode(TopicRouteData, data)


def topics_body(data: bytes) -> object:
    return bodies.decode(TopicConfigTable, data)


def gateway_response(data: bytes) -> object:
    """In two pieces; the limit of the body holds."""
    decoder = ResponseDecoder(UNPACKED_LIMIT_BYTES)
    for piece in (data[: len(data) // 2], data[len(data) // 2 :]):
        decoder.feed(piece)
    if not decoder.is_complete:
        decoder.feed_end()
    body = decoder.take_body()
    assert len(body) <= UNPACKED_LIMIT_BYTES
    assert 200 <= decoder.status <= 999
    return body


def gateway_answer(data: bytes) -> object:
    """As each kind of answer, and as an error."""
    etcd_answers.refusal(500, data)
    try:
        for document in DocumentSplitter(UNPACKED_LIMIT_BYTES).feed(data):
            etcd_answers.decode_streamed(etcd_answers.WatchAnswer, document)
    except etcd_answers.Refusal:
        return None
    return etcd_answers.decode(etcd_answers.TxnAnswer, data)


@cache
def feed() -> feed_bench.FeedBench:
    made = kernel.new_feed()
    assert made is not None
    return feed_bench.FeedBench(made)


def fed(data: bytes) -> object:
    return feed().run(data)


@cache
def guard() -> guard_bench.GuardBench:
    return guard_bench.GuardBench()


def guarded(data: bytes) -> object:
    return guard().run(data)


def close() -> None:
    """Stop the processes of the targets."""
    if guard.cache_info().currsize:
        guard().close()
        guard.cache_clear()


TARGETS = (
    Target("frames", split, frames),
    Target("command", command.decode, frames),
    Target("JSON header", json_header, partial(headers, HeaderEncoding.JSON)),
    Target("binary header", binary_header, partial(headers, HeaderEncoding.ROCKETMQ)),
    Target("typed header", typed_header, partial(headers, HeaderEncoding.ROCKETMQ)),
    Target("record", one_record, records),
    Target("pull reply", pull_reply, records),
    Target("record scan", scan, records),
    Target("batch", batch.decode, batches),
    Target("properties", property_text, property_texts),
    Target("fastjson", fastjson.loads, json_bodies),
    Target("route body", route_body, json_bodies),
    Target("topics body", topics_body, json_bodies),
    Target("registration", registration_body, registrations),
    Target("registration, raw", registration_raw, raw_registrations),
    Target("compressed body", unpack, packed),
    Target("offset id", offset_id, ids),
    Target("response of etcd", gateway_response, gateway_responses),
    Target("answer of etcd", gateway_answer, gateway_answers),
    Target("access control", guarded, guard_bench.corpus),
    *((Target("feed", fed, feed_bench.corpus),) if kernel.WHY_PURE is None else ()),
)
