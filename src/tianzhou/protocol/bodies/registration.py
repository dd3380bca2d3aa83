"""Registration of a broker with the nameserver, every 30 seconds: its topics and filter servers.

The body is JSON, or (header field `compressed`) a deflated stream of sections, each with its length
in four bytes before it; counts have four bytes too:

    data version              JSON
    count, then each topic    "name readQueues writeQueues perm filterType [attributes]"
    filter servers            JSON array of strings
    count, then each mapping  JSON; of static topics, from V5_0_0 on
"""

import struct
import zlib
from collections.abc import Generator, Iterable, Iterator

import msgspec

from tianzhou.errors import BodyError
from tianzhou.limits import (
    INFLATED_BYTES_MAX,
    LIST_BODY_BYTES_MAX,
    REGISTERED_TOPICS_MAX,
)
from tianzhou.protocol import fastjson
from tianzhou.protocol.bodies import codec
from tianzhou.protocol.bodies.codec import Body
from tianzhou.protocol.bodies.pieces import decode_pieces
from tianzhou.protocol.bodies.route import TopicQueueMappingInfo
from tianzhou.protocol.bodies.topics import (
    DataVersion,
    TopicConfig,
    TopicConfigTable,
    format_topic,
    parse_topic,
)
from tianzhou.protocol.version import V5_0_0

_LENGTH = struct.Struct(">i")
_ZLIB_START = b"\x78"
_INFLATED_TOGETHER = 256 * 1024
_table_decoder = msgspec.json.Decoder(dict[str, TopicConfig], strict=False)


class RegisterBrokerBody(Body, frozen=True, kw_only=True):
    """Body of REGISTER_BROKER."""

    topic_config: TopicConfigTable = msgspec.field(
        default_factory=TopicConfigTable, name="topicConfigSerializeWrapper"
    )
    filter_servers: list[str] = msgspec.field(default=[], name="filterServerList")


def decode_steps(
    data: bytes, *, compressed: bool, broker_version: int
) -> Generator[None, None, RegisterBrokerBody]:
    """The registration in `data`; `broker_version` is the version in the request's header.

    Brokers of 5.x that compress deny it in the header, so the first byte of the body decides: JSON
    and zlib streams begin differently. Pauses between topics. Raises BodyError.
    """
    if not compressed and not data.startswith(_ZLIB_START):
        return (yield from _decode_json(data))
    sections = _Sections((yield from _inflate(data)))
    data_version = codec.decode_request(DataVersion, sections.next())
    topics = yield from _topics_by_name(sections.next_group(REGISTERED_TOPICS_MAX))
    filter_servers = codec.decode_request(list[str], sections.next())
    mappings: dict[str, TopicQueueMappingInfo] | None = None
    if broker_version >= V5_0_0:
        mappings = {}
        for encoded in sections.next_group(REGISTERED_TOPICS_MAX):
            yield
            info = codec.decode_request(TopicQueueMappingInfo, encoded)
            if info.topic is not None:
                mappings[info.topic] = info
    return RegisterBrokerBody(
        topic_config=TopicConfigTable(
            topics=topics, data_version=data_version, mapping_infos=mappings
        ),
        filter_servers=filter_servers,
    )


def encode_steps(
    body: RegisterBrokerBody, *, compressed: bool, broker_version: int
) -> Generator[None, None, bytes]:
    """The body of a request whose header says `compressed` and `broker_version`."""
    if not compressed:
        return (yield from fastjson.dumps_steps(body))
    table = body.topic_config
    deflater = zlib.compressobj(9)
    pieces: list[bytes] = []

    def put(section: bytes) -> None:
        pieces.append(deflater.compress(section))

    put(_section(fastjson.dumps(table.data_version)))
    put(_LENGTH.pack(len(table.topics)))
    for topic in list(table.topics.values()):
        put(_section(format_topic(topic).encode()))
        yield
    put(_section(fastjson.dumps(body.filter_servers)))
    if broker_version >= V5_0_0:
        infos = list((table.mapping_infos or {}).values())
        put(_LENGTH.pack(len(infos)))
        for info in infos:
            put(_section(fastjson.dumps(info)))
            yield
    return b"".join(pieces) + deflater.flush()


def _decode_json(data: bytes) -> Generator[None, None, RegisterBrokerBody]:
    topics, rest = yield from decode_pieces(data, "topicConfigTable", _table_decoder)
    if len(rest) > LIST_BODY_BYTES_MAX:
        raise BodyError(f"{len(rest)} bytes of the registration are no list of topics")
    body = yield from codec.decode_request_steps(RegisterBrokerBody, rest)
    topics.update(body.topic_config.topics)
    table = msgspec.structs.replace(body.topic_config, topics=topics)
    return msgspec.structs.replace(body, topic_config=table)


def _topics_by_name(lines: Iterable[bytes]) -> Generator[None, None, dict[str, TopicConfig]]:
    topics: dict[str, TopicConfig] = {}
    for line in lines:
        yield
        try:
            topic = parse_topic(str(line, "utf-8"))
        except UnicodeDecodeError as e:
            raise BodyError(f"the name of a topic is not UTF-8: {e}") from e
        if topic.topic_name:
            topics[topic.topic_name] = topic
    return topics


def _inflate(data: bytes) -> Generator[None, None, bytes]:
    inflater = zlib.decompressobj()
    pieces: list[bytes] = []
    left = INFLATED_BYTES_MAX
    rest = data
    while rest and left > 0:
        try:
            pieces.append(inflater.decompress(rest, min(_INFLATED_TOGETHER, left)))
        except zlib.error as e:
            raise BodyError(f"the registration cannot be inflated: {e}") from e
        left -= len(pieces[-1])
        rest = inflater.unconsumed_tail
        yield
    if rest:
        raise BodyError(f"the registration inflates to more than {INFLATED_BYTES_MAX} bytes")
    return b"".join(pieces)


class _Sections:
    """Reads one length-prefixed section after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def next(self) -> bytes:
        length = self._int()
        stop = self._at + length
        if length < 0 or stop > len(self._data):
            raise BodyError(
                f"a section of {length} bytes is announced, {len(self._data) - self._at} are left"
            )
        section = self._data[self._at : stop]
        self._at = stop
        return section

    def next_group(self, count_max: int) -> Iterator[bytes]:
        count = self._int()
        if count > count_max:
            raise BodyError(f"the registration lists {count} topics, at most {count_max} are read")
        # Each section takes four bytes at least, so a count that lies ends with the data.
        return (self.next() for _ in range(count))

    def _int(self) -> int:
        if len(self._data) - self._at < _LENGTH.size:
            raise BodyError("the registration ends inside a length")
        (number,) = _LENGTH.unpack_from(self._data, self._at)
        self._at += _LENGTH.size
        return int(number)


def _section(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data
