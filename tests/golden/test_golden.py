"""Golden bytes: the output of Apache's programs must be read and written again byte for byte.

The data is captured by `capture.py`. Each line of a file is one frame or one record in hex with a
note of what it is; a failure names the notes.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support import framing, registration
from tests.support.header_table import REQUEST_HEADERS, RESPONSE_HEADERS
from tests.support.records import encode_record
from tianzhou.protocol import bodies, command, fastjson, headers, properties
from tianzhou.protocol.bodies import (
    clients,
    groups,
    offsets,
    queues,
    route,
    stats,
    topics,
)
from tianzhou.protocol.bodies.registration import RegisterBrokerBody
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command, HeaderEncoding
from tianzhou.protocol.kernel import body_crc
from tianzhou.protocol.records import batch, compression, message_id, record

pytestmark = pytest.mark.usefixtures("codec")

HERE = Path(__file__).parent
VERSIONS = ("4.9.7", "5.5.0")
FRAME_FILES = sorted(path.name for path in HERE.glob("frames-*.jsonl"))
RECORD_FILES = sorted(path.name for path in HERE.glob("records-*.jsonl"))


class GoldenFrame(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a frames file; `request` is the request code, in responses too."""

    note: str
    sender: str = msgspec.field(name="from")
    receiver: str = msgspec.field(name="to")
    version: str
    encoding: str
    request: int
    hex: str

    @property
    def content(self) -> bytes:
        return bytes.fromhex(self.hex)

    @property
    def name(self) -> str:
        return RequestCode(self.request).name


class GoldenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a records file."""

    note: str
    version: str
    hex: str

    @property
    def content(self) -> bytes:
        return bytes.fromhex(self.hex)


def read_frames(name: str) -> list[GoldenFrame]:
    lines = (HERE / name).read_bytes().splitlines()
    return [msgspec.json.decode(line, type=GoldenFrame) for line in lines]


def read_records(name: str) -> list[GoldenRecord]:
    lines = (HERE / name).read_bytes().splitlines()
    return [msgspec.json.decode(line, type=GoldenRecord) for line in lines]


ALL_FRAMES = [frame for name in FRAME_FILES for frame in read_frames(name)]


def frames_of(code: RequestCode, *, answers: bool) -> list[tuple[GoldenFrame, Command]]:
    """Requests with a code, or their successful responses."""
    found = [(each, command.decode(each.content)) for each in ALL_FRAMES if each.request == code]
    return [
        (each, decoded)
        for each, decoded in found
        if decoded.is_response == answers and (not answers or decoded.code == 0)
    ]


# -- the collection -------------------------------------------------------------------------------

EVERYWHERE = {
    "GET_ROUTEINFO_BY_TOPIC request", "GET_ROUTEINFO_BY_TOPIC answer 0",
    "GET_ROUTEINFO_BY_TOPIC answer 17", "HEART_BEAT request", "HEART_BEAT answer 0",
    "SEND_MESSAGE request", "SEND_MESSAGE answer 0", "SEND_MESSAGE_V2 request",
    "SEND_MESSAGE_V2 oneway", "SEND_MESSAGE_V2 answer 0", "SEND_BATCH_MESSAGE request",
    "SEND_BATCH_MESSAGE answer 0", "SEND_REPLY_MESSAGE_V2 request", "END_TRANSACTION oneway",
    "CHECK_TRANSACTION_STATE oneway", "PULL_MESSAGE request", "PULL_MESSAGE answer 0",
    "PULL_MESSAGE answer 19", "PULL_MESSAGE answer 20", "PULL_MESSAGE answer 21",
    "QUERY_CONSUMER_OFFSET request", "QUERY_CONSUMER_OFFSET answer 0",
    "UPDATE_CONSUMER_OFFSET oneway", "GET_CONSUMER_LIST_BY_GROUP request",
    "GET_CONSUMER_LIST_BY_GROUP answer 0", "NOTIFY_CONSUMER_IDS_CHANGED oneway",
    "LOCK_BATCH_MQ request", "LOCK_BATCH_MQ answer 0", "UNLOCK_BATCH_MQ request",
    "CONSUMER_SEND_MSG_BACK request", "CHECK_CLIENT_CONFIG request", "UNREGISTER_CLIENT request",
    "REGISTER_BROKER request", "REGISTER_BROKER answer 0", "UNREGISTER_BROKER request",
    "GET_BROKER_CLUSTER_INFO answer 0", "UPDATE_AND_CREATE_TOPIC request",
    "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP request", "PUT_KV_CONFIG request",
    "GET_KV_CONFIG answer 0", "DELETE_KV_CONFIG request", "WIPE_WRITE_PERM_OF_BROKER answer 0",
    "ADD_WRITE_PERM_OF_BROKER answer 0", "GET_NAMESRV_CONFIG answer 0",
    "UPDATE_NAMESRV_CONFIG request", "GET_MAX_OFFSET answer 0", "GET_MIN_OFFSET answer 0",
    "SEARCH_OFFSET_BY_TIMESTAMP answer 0", "QUERY_MESSAGE answer 0",
    "VIEW_MESSAGE_BY_ID answer 0", "GET_CONSUME_STATS answer 0", "GET_TOPIC_STATS_INFO answer 0",
    "PUSH_REPLY_MESSAGE_TO_CLIENT request",
}  # fmt: skip
"""What a capture must contain for every version and in both encodings."""


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("encoding", HeaderEncoding)
def test_every_kind_of_frame_was_captured(version: str, encoding: HeaderEncoding) -> None:
    frames = read_frames(f"frames-{version}-{encoding.name.lower()}.jsonl")
    kinds = {frame.note.partition(" (")[0] for frame in frames}
    assert not EVERYWHERE - kinds
    assert {frame.encoding for frame in frames} == {encoding.name}
    assert {frame.version for frame in frames} == {version}
    if version.startswith("4."):
        # A 5.x broker resets offsets itself and does not notify the clients.
        assert "RESET_CONSUMER_CLIENT_OFFSET oneway" in kinds
    if version.startswith("5.") and encoding is HeaderEncoding.JSON:
        assert {"POP_MESSAGE answer 0", "ACK_MESSAGE request", "QUERY_ASSIGNMENT answer 0"} <= kinds


# -- frames and headers ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", FRAME_FILES)
def test_frames_are_split_where_they_end(name: str) -> None:
    contents = [frame.content for frame in read_frames(name)]
    stops = [sum(map(len, contents[: number + 1])) for number in range(len(contents))]
    starts = [0, *stops[:-1]]
    spans, consumed = framing.split(b"".join(contents))
    assert spans == list(zip(starts, stops, strict=True))
    assert consumed == stops[-1]


@pytest.mark.parametrize("name", FRAME_FILES)
def test_frames_round_trip_byte_for_byte(name: str) -> None:
    for frame in read_frames(name):
        decoded = command.decode(frame.content)
        assert decoded.encoding.name == frame.encoding, frame.note
        again = command.encode(decoded)
        if writes_fields_twice(frame.content):
            assert command.decode(again) == decoded, frame.note
            assert "(sendSigned)" in frame.note
        else:
            assert again == frame.content, frame.note


def writes_fields_twice(content: bytes) -> bool:
    """Whether a binary header repeats field names, as that of a signing Java client does.

    The client signs the fields as a map, then writes both the typed header and the map.
    """
    if content[4] != HeaderEncoding.ROCKETMQ:
        return False
    stop = 8 + int.from_bytes(content[5:8], "big")
    remark_length = int.from_bytes(content[21:25], "big")
    at = 25 + remark_length + 4
    names: list[bytes] = []
    while at < stop:
        name_length = int.from_bytes(content[at : at + 2], "big")
        names.append(content[at + 2 : at + 2 + name_length])
        at += 2 + name_length
        at += 4 + int.from_bytes(content[at : at + 4], "big")
    return len(set(names)) < len(names)


ADDED_BY_HOOKS = {"ReqT", "AccessKey", "Signature", "SecurityToken"}
"""Fields that a client adds to every request: its request type, its signature."""

UNKNOWN_TO_4_9 = {
    RequestCode.GET_MAX_OFFSET: {"committed": "true"},
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: {"queueId": "-1"},
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: {"queueId": "-1"},
}
"""Fields with a default of 5.x, which we always write, and which 4.9 does not send."""


@pytest.mark.parametrize("name", FRAME_FILES)
def test_request_headers_round_trip_as_equal_maps(name: str) -> None:
    for frame in read_frames(name):
        decoded = command.decode(frame.content)
        if decoded.is_response:
            continue
        fields = {k: v for k, v in decoded.fields.items() if k not in ADDED_BY_HOOKS}
        header_type = REQUEST_HEADERS.get(RequestCode(decoded.code))
        if header_type is None:
            assert fields == {}, f"{frame.note}: a header without a type"
            continue
        if frame.version.startswith("4."):
            fields = UNKNOWN_TO_4_9.get(RequestCode(decoded.code), {}) | fields
        assert headers.encode(headers.decode(header_type, decoded.fields)) == fields, frame.note


@pytest.mark.parametrize("name", FRAME_FILES)
def test_response_headers_round_trip_as_equal_maps(name: str) -> None:
    for frame in read_frames(name):
        decoded = command.decode(frame.content)
        header_type = RESPONSE_HEADERS.get(RequestCode(frame.request))
        if not decoded.is_response or not decoded.fields:
            continue
        assert header_type is not None, f"{frame.note}: a header without a type: {decoded.fields}"
        again = headers.encode(headers.decode(header_type, decoded.fields))
        assert again == decoded.fields, frame.note


def test_a_signed_request_has_key_token_and_signature() -> None:
    signed = [command.decode(frame.content) for frame in ALL_FRAMES if "(sendSigned)" in frame.note]
    sends = [each for each in signed if each.code == RequestCode.SEND_MESSAGE_V2]
    assert len(sends) == len(FRAME_FILES)
    for each in sends:
        assert each.fields["AccessKey"] == "golden-access"
        assert each.fields["SecurityToken"] == "golden-token"
        assert len(each.fields["Signature"]) == 28
        assert each.body == "signed 签名".encode()


# -- sent messages --------------------------------------------------------------------------------


def sends_of(step: str) -> list[Command]:
    """The requests of one step of the scenario, of all versions and encodings."""
    return [
        command.decode(frame.content)
        for frame in ALL_FRAMES
        if frame.name == "SEND_MESSAGE_V2" and frame.note.endswith(f" request ({step})")
    ]


def test_unicode_properties_are_read() -> None:
    sends = sends_of("sendUnicode")
    assert len(sends) == len(FRAME_FILES)
    for sent in sends:
        found = properties.decode(sent.fields["i"])
        assert found["TAGS"] == "标签"
        assert found["KEYS"] == "键一 键二"
        assert found["城市"] == "北京"
        assert found["rocket"] == "\N{ROCKET}"
        assert found["quoted"] == 'a"b\\c/d\te'
        assert sent.body == "天舟 \N{ROCKET} ünïcödé".encode()


@pytest.mark.parametrize(
    ("step", "kind", "file_count"),
    [
        ("sendCompressed", compression.CompressionType.ZLIB, 4),
        ("sendCompressedLz4", compression.CompressionType.LZ4, 2),
        ("sendCompressedZstd", compression.CompressionType.ZSTD, 2),
    ],
)
def test_compressed_bodies_are_decompressed(
    step: str, kind: compression.CompressionType, file_count: int
) -> None:
    sends = sends_of(step)
    assert len(sends) == file_count
    for sent in sends:
        sys_flag = int(sent.fields["f"])
        assert compression.type_of(sys_flag) is kind
        plain = compression.plain_body(sent.body, sys_flag, 1 << 20)
        assert len(plain) > 5000 > len(sent.body)
        assert plain.startswith(b"line 0 of a body that shrinks well\n")


def test_batch_bodies_round_trip_byte_for_byte() -> None:
    found = frames_of(RequestCode.SEND_BATCH_MESSAGE, answers=False)
    assert len(found) == len(FRAME_FILES)
    for frame, decoded in found:
        items = batch.decode(decoded.body)
        assert batch.encode(items) == decoded.body, frame.note
        assert [item.body for item in items] == [
            b"first of three", "第二".encode(), b"\x00\x01\x02\xff",
        ]  # fmt: skip
        assert [item.flag for item in items] == [0, 3, 0]
        assert properties.decode(items[1].properties_text)["n"] == "2"


def test_message_ids_have_the_broker_and_the_log_offset() -> None:
    for frame, decoded in frames_of(RequestCode.SEND_MESSAGE_V2, answers=True):
        text = decoded.fields["msgId"]
        store_host, log_offset = message_id.decode_offset_id(text)
        assert store_host[0] == "127.0.0.1", frame.note
        assert message_id.encode_offset_id(store_host, log_offset) == text, frame.note


# -- records --------------------------------------------------------------------------------------


def properties_text_of(content: bytes) -> str:
    """The end of a record, found by trying lengths: its text is recognized by the separators."""
    decoded = record.decode_record(content)
    for start in range(len(content) - 2, 0, -1):
        size = int.from_bytes(content[start : start + 2], "big")
        if start + 2 + size == len(content):
            text = content[start + 2 :].decode()
            if properties.decode(text) == decoded.properties:
                return text
    raise AssertionError("no properties at the end of the record")


def encode_again(content: bytes) -> bytes:
    """Read a record and write it again, with the text of its properties unchanged."""
    read = record.decode_record(content)
    return encode_record(
        topic=read.topic,
        body=read.body,
        properties_text=properties_text_of(content),
        queue_id=read.queue_id,
        born_time_ms=read.born_time_ms,
        born_host=read.born_host,
        store_host=read.store_host,
        store_time_ms=read.store_time_ms,
        queue_offset=read.queue_offset,
        log_offset=read.log_offset,
        flag=read.flag,
        sys_flag=read.sys_flag,
        reconsume_count=read.reconsume_count,
        prepared_log_offset=read.prepared_log_offset,
    )


def check_record(note: str, content: bytes) -> None:
    assert encode_again(content) == content, note
    text = properties_text_of(content)
    names = [part.partition("\x01")[0] for part in text.split("\x02") if part]
    if len(names) == len(set(names)):
        stored = record.decode_record(content)
        assert record.encode_stored(stored, closed=text.endswith("\x02")) == content, note
    else:
        # 4.9 appends WAIT to each message of a batch, even if it is present already.
        assert names.count("WAIT") == 2, note


@pytest.mark.parametrize("name", RECORD_FILES)
def test_records_round_trip_byte_for_byte(name: str) -> None:
    for golden in read_records(name):
        if golden.note.startswith("filler"):
            (size,) = [int(word) for word in golden.note.split() if word.isdigit()][:1]
            assert record.encode_blank(size) == golden.content, golden.note
        else:
            check_record(golden.note, golden.content)


def test_records_of_every_layout_were_captured() -> None:
    notes = {
        version: [r.note for r in read_records(f"records-{version}.jsonl")] for version in VERSIONS
    }
    for found in notes.values():
        assert any(note.startswith("filler") for note in found)
        assert any("IPv6 hosts" in note for note in found)
        for topic in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "%RETRY%golden_retried"):
            assert any(f"topic {topic}," in note for note in found)
    assert any(note.startswith("v2 record") for note in notes["5.5.0"])


@pytest.mark.parametrize("version", VERSIONS)
def test_ipv6_hosts_are_read(version: str) -> None:
    found = [r for r in read_records(f"records-{version}.jsonl") if "IPv6" in r.note]
    assert found
    for golden in found:
        read = record.decode_record(golden.content)
        assert (read.born_host[0], read.store_host[0]) == ("::1", "::1"), golden.note


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.PULL_MESSAGE,
        RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.POP_MESSAGE,
        RequestCode.CHECK_TRANSACTION_STATE,
    ],
)
def test_records_on_the_wire_round_trip_byte_for_byte(code: RequestCode) -> None:
    found = frames_of(code, answers=code is not RequestCode.CHECK_TRANSACTION_STATE)
    assert found
    for frame, decoded in found:
        assert len(record.decode_records(decoded.body)) >= 1
        spans = list(record.scan_records(decoded.body))
        for start, size, _magic in spans:
            check_record(frame.note, decoded.body[start : start + size])
        assert sum(size for _, size, _ in spans) == len(decoded.body)


# -- JSON bodies ----------------------------------------------------------------------------------

REQUEST_BODIES: dict[RequestCode, type[Any]] = {
    RequestCode.HEART_BEAT: clients.HeartbeatData,
    RequestCode.CHECK_CLIENT_CONFIG: clients.CheckClientBody,
    RequestCode.LOCK_BATCH_MQ: queues.QueueLockBody,
    RequestCode.UNLOCK_BATCH_MQ: queues.QueueLockBody,
    RequestCode.REGISTER_BROKER: RegisterBrokerBody,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: offsets.ResetOffsetBody,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.SubscriptionGroupConfig,
    RequestCode.QUERY_ASSIGNMENT: queues.QueryAssignmentRequestBody,
    RequestCode.SET_MESSAGE_REQUEST_MODE: queues.SetMessageRequestModeBody,
}
RESPONSE_BODIES: dict[RequestCode, type[Any]] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: route.TopicRouteData,
    RequestCode.GET_BROKER_CLUSTER_INFO: route.ClusterInfo,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: topics.TopicList,
    RequestCode.GET_BROKER_RUNTIME_INFO: topics.KVTable,
    RequestCode.GET_TOPIC_CONFIG: topics.TopicConfigAndMapping,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups.SubscriptionGroupTable,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: groups.GroupList,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: clients.ConsumerIdList,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: clients.ConsumerConnection,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: clients.ProducerConnection,
    RequestCode.LOCK_BATCH_MQ: queues.LockBatchResponseBody,
    RequestCode.QUERY_ASSIGNMENT: queues.QueryAssignmentResponseBody,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: offsets.ResetOffsetBody,
    RequestCode.GET_CONSUME_STATS: stats.ConsumeStats,
    RequestCode.GET_TOPIC_STATS_INFO: stats.TopicStatsTable,
}


def json_bodies(name: str) -> Iterable[tuple[GoldenFrame, Command]]:
    """Frames whose body is JSON: it begins with a brace, which no record, text or deflate does."""
    for frame in read_frames(name):
        decoded = command.decode(frame.content)
        if decoded.body.startswith(b"{"):
            yield frame, decoded


def as_json(body: bytes) -> Any:  # noqa: ANN401 - whatever JSON holds
    """The result of another parser, None if the body is not strict JSON."""
    try:
        return json.loads(body)
    except ValueError:
        return None


@pytest.mark.parametrize("name", FRAME_FILES)
def test_json_bodies_are_read(name: str) -> None:
    strict_count = loose_count = 0
    for frame, decoded in json_bodies(name):
        value = fastjson.loads(decoded.body)
        strict = as_json(decoded.body)
        if strict is None:
            loose_count += 1
            assert fastjson.loads(fastjson.dumps(value, standard=False)) == value, frame.note
        else:
            strict_count += 1
            assert value == strict, frame.note
    assert strict_count > 10
    assert loose_count > 2


@pytest.mark.parametrize("name", FRAME_FILES)
def test_typed_bodies_round_trip_byte_for_byte(name: str) -> None:
    for frame, decoded in json_bodies(name):
        table = RESPONSE_BODIES if decoded.is_response else REQUEST_BODIES
        body_type = table[RequestCode(frame.request)]
        # Only routes are written in strict JSON, for clients that require it.
        standard = body_type is route.TopicRouteData and as_json(decoded.body) is not None
        again = bodies.encode(bodies.decode(body_type, decoded.body), standard=standard)
        assert again == decoded.body, frame.note


def test_compressed_registrations_are_read() -> None:
    compressed = [
        (frame, decoded)
        for frame, decoded in frames_of(RequestCode.REGISTER_BROKER, answers=False)
        if decoded.body.startswith(b"\x78\xda")
    ]
    assert len(compressed) == len(FRAME_FILES)
    for frame, decoded in compressed:
        # A 5.x broker compresses the body and says in the header that it did not.
        said = "true" if frame.version.startswith("4.") else "false"
        assert decoded.fields["compressed"] == said, frame.note
        assert int(decoded.fields["bodyCrc32"]) == body_crc(decoded.body), frame.note
        found = registration.decode(
            decoded.body, compressed=said == "true", broker_version=decoded.version
        )
        assert found.topic_config.topics["GoldenTopic"].read_queue_count == 2
        again = registration.encode(found, compressed=True, broker_version=decoded.version)
        assert again == decoded.body, frame.note
