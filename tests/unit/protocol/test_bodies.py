"""Typed bodies, against the texts and bytes that RocketMQ 4.9.7 and 5.5.0 write."""

import importlib
import json
import zlib
from pathlib import Path

import pytest
from tests.support import registration

from tianzhou.errors import BodyError
from tianzhou.limits import LOOSE_JSON_BYTES_MAX
from tianzhou.protocol import bodies
from tianzhou.protocol.bodies import Body, decode, decode_request, encode
from tianzhou.protocol.bodies.clients import ConsumerData, HeartbeatData
from tianzhou.protocol.bodies.offsets import ConsumerOffsetTable
from tianzhou.protocol.bodies.queues import MessageQueue
from tianzhou.protocol.bodies.registration import RegisterBrokerBody
from tianzhou.protocol.bodies.route import (
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicQueueMappingInfo,
    TopicRouteData,
)
from tianzhou.protocol.bodies.stats import ConsumeOffsets, ConsumeStats
from tianzhou.protocol.bodies.topics import (
    DataVersion,
    KVTable,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    format_topic,
    parse_topic,
)
from tianzhou.protocol.version import version_ordinal

V4_9_7 = version_ordinal("V4_9_7")
V5_5_0 = version_ordinal("V5_5_0")

# -- every body -----------------------------------------------------------------------------------


def samples() -> list[tuple[str, str, str]]:
    """(struct, release, text) of every body, all fields filled."""
    path = Path(__file__).parents[2] / "golden" / "bodies.tsv"
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    return [(name, release, text) for name, release, text in rows]


def body_type(name: str) -> type[Body]:
    module, _, struct = name.partition(".")
    found: object = getattr(importlib.import_module(f"{bodies.__name__}.{module}"), struct)
    assert isinstance(found, type)
    assert issubclass(found, Body)
    return found


SAMPLES = samples()


def test_there_is_a_sample_of_most_bodies() -> None:
    assert len(SAMPLES) >= 128
    assert {release for _, release, _ in SAMPLES} == {"4.9.7", "5.5.0"}


@pytest.mark.parametrize(
    ("name", "text"),
    [pytest.param(name, text, id=f"{name}-{release}") for name, release, text in SAMPLES],
)
def test_bodies_of_fastjson_round_trip(name: str, text: str) -> None:
    body = decode(body_type(name), text.encode())
    assert encode(body).decode() == text
    standard = encode(body, standard=True)
    assert json.loads(standard) is not None
    assert decode(body_type(name), standard) == body


# -- routes ---------------------------------------------------------------------------------------


def route(enable_acting_master: bool | None) -> TopicRouteData:
    return TopicRouteData(
        order_conf='b:4;c:"d',
        queues=[
            QueueData(broker_name="b-é", read_queue_count=4, write_queue_count=8, perm=6),
        ],
        brokers=[
            BrokerData(
                cluster="c",
                broker_name="b",
                addresses={0: "1.1.1.1:1", -1: "z", 3_000_000_000: "w", 2: "y", 10: "x"},
                enable_acting_master=enable_acting_master,
            ),
            BrokerData(broker_name="b2", enable_acting_master=enable_acting_master),
        ],
        filter_servers={"b:1": ["f1"]},
    )


def test_a_route_reads_as_that_of_a_4_9_nameserver() -> None:
    assert encode(route(None), standard=False).decode() == (
        '{"brokerDatas":[{"brokerAddrs":{0:"1.1.1.1:1",-1:"z",3000000000:"w",2:"y",10:"x"},'
        '"brokerName":"b","cluster":"c"},{"brokerName":"b2"}],"filterServerTable":{"b:1":["f1"]},'
        '"orderTopicConf":"b:4;c:\\"d","queueDatas":[{"brokerName":"b-é","perm":6,'
        '"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":8}]}'
    )


def test_a_route_reads_as_that_of_a_5_5_nameserver_in_standard_json() -> None:
    assert encode(route(False), standard=True).decode() == (
        '{"brokerDatas":[{"brokerAddrs":{"-1":"z","0":"1.1.1.1:1","2":"y","10":"x",'
        '"3000000000":"w"},"brokerName":"b","cluster":"c","enableActingMaster":false},'
        '{"brokerName":"b2","enableActingMaster":false}],"filterServerTable":{"b:1":["f1"]},'
        '"orderTopicConf":"b:4;c:\\"d","queueDatas":[{"brokerName":"b-é","perm":6,'
        '"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":8}]}'
    )


def test_a_long_request_must_be_strict_json() -> None:
    some = b",".join(b'"t%d":%d' % (number, number) for number in range(40_000))
    assert len(some) > LOOSE_JSON_BYTES_MAX
    strict = b'{"table":{%s}}' % some
    assert decode_request(dict[str, dict[str, int]], strict)["table"]["t7"] == 7
    integers = b'{"1":{%s}}' % some.replace(b'"t', b"").replace(b'":', b":")
    assert decode_request(dict[str, dict[int, int]], integers)["1"][7] == 7
    for loose in (strict.replace(b'"', b"'"), b'{"$ref":"$",' + strict[1:]):
        with pytest.raises(BodyError, match="no strict JSON"):
            decode_request(dict[str, dict[str, int]], loose)
    assert decode_request(dict[str, int], b"{'a':1}") == {"a": 1}


def test_an_empty_route() -> None:
    empty = b'{"brokerDatas":[],"filterServerTable":{},"queueDatas":[]}'
    assert encode(TopicRouteData()) == encode(TopicRouteData(), standard=True) == empty
    assert decode(TopicRouteData, empty) == decode(TopicRouteData, b"{}") == TopicRouteData()


def test_shared_objects_are_read() -> None:
    # Fastjson 1 for two brokers that share one map of addresses, and the first of them twice.
    text = (
        b'{"brokerDatas":[{"brokerAddrs":{0:"a:1"},"brokerName":"b","cluster":"c"},'
        b'{"$ref":"$.brokerDatas[0]"},'
        b'{"brokerAddrs":{"$ref":"$.brokerDatas[0].brokerAddrs"},"brokerName":"b9"}]}'
    )
    first, second, third = decode(TopicRouteData, text).brokers
    assert first == second == BrokerData(cluster="c", broker_name="b", addresses={0: "a:1"})
    assert third == BrokerData(broker_name="b9", addresses={0: "a:1"})


# -- tolerance ------------------------------------------------------------------------------------


def test_unknown_fields_are_ignored_and_nulls_are_absent() -> None:
    text = b'{"topicList":null,"brokerAddr":null,"more":{"a":[1]}}'
    assert decode(TopicList, text) == TopicList()
    assert decode(ClusterInfo, b'{"clusterAddrTable":{"c":["b",]},}') == ClusterInfo(
        clusters={"c": ["b"]}
    )


def test_numbers_in_quotes_are_numbers() -> None:
    text = b'{"timestamp":"9007199254740993","counter":"7"}'
    assert decode(DataVersion, text) == DataVersion(timestamp=2**53 + 1, counter=7)


def test_integer_keys_are_read_quoted_or_not() -> None:
    offsets = ConsumerOffsetTable(offsets={"t@g": {0: 1, 3: 2}})
    assert decode(ConsumerOffsetTable, b'{"offsetTable":{"t@g":{0:1,3:2}}}') == offsets
    assert decode(ConsumerOffsetTable, b'{"offsetTable":{"t@g":{"0":1,"3":2}}}') == offsets
    # A string that looks like a key must not be treated as one.
    table = decode(KVTable, b'{"table":{"a":"x,1:y","b":"{2:"}}')
    assert table == KVTable(table={"a": "x,1:y", "b": "{2:"})
    unusual = decode(ConsumerOffsetTable, b'{"offsetTable":{"t,1:@g":{0:1}}}')
    assert unusual == ConsumerOffsetTable(offsets={"t,1:@g": {0: 1}})


def test_objects_as_keys_are_read_as_objects_or_as_text() -> None:
    queue = MessageQueue(topic="t", broker_name="b", queue_id=1)
    stats = ConsumeStats(offsets={queue: ConsumeOffsets(broker_offset=5)}, consume_tps=1.5)
    native = (
        b'{"consumeTps":1.5,"offsetTable":{{"brokerName":"b","queueId":1,"topic":"t"}:'
        b'{"brokerOffset":5,"consumerOffset":0,"lastTimestamp":0}}}'
    )
    # The text of fastjson 1 with the features of the nameserver.
    standard = (
        b'{"consumeTps":1.5,"offsetTable":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":1,'
        b'\\"topic\\":\\"t\\"}":{"brokerOffset":5,"consumerOffset":0,"lastTimestamp":0}}}'
    )
    assert decode(ConsumeStats, native) == decode(ConsumeStats, standard) == stats
    assert encode(stats) == native
    assert encode(stats, standard=True) == standard


def test_enumerations_of_a_consumer_are_names_even_if_sent_as_numbers() -> None:
    text = (
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":1,"messageModel":1,'
        b'"consumeFromWhere":4,"subscriptionDataSet":[],"unitMode":false}],"producerDataSet":[]}'
    )
    consumer = ConsumerData(
        group_name="g",
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
    )
    assert decode(HeartbeatData, text) == HeartbeatData(client_id="c", consumers=[consumer])


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "a value expected"),
        (b"[]", "TopicRouteData: Expected `object`, got `array`"),
        (b'{"queueDatas":{}}', "TopicRouteData: Expected `array`, got `object`"),
        (b'{"queueDatas":[{"perm":2147483648}]}', r"2147483647 - at `\$.queueDatas"),
        (b'{"brokerDatas":[{"brokerAddrs":{"x":"y"}}]}', "TopicRouteData: Expected `int`"),
        (b'{"orderTopicConf":"\xff"}', "not UTF-8"),
        (b'{"more":' + b"[" * 100_000, "nested more than 128 levels deep"),
        (b'{"queueDatas":{"$ref":"$"}}', "contain itself"),
    ],
)
def test_invalid_bodies_are_rejected(data: bytes, problem: str) -> None:
    with pytest.raises(BodyError, match=problem):
        decode(TopicRouteData, data)


# -- topics in one line ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "attributes"),
    [
        ("T 4 8 6 SINGLE_TAG", None),
        ("T 4 8 6 SINGLE_TAG {}", {}),
        ('T 4 8 6 SINGLE_TAG {"+message.type":"FIFO"}', {"+message.type": "FIFO"}),
        ('T 4 8 6 SINGLE_TAG {"a b":"c d"}', {"a b": "c d"}),
    ],
)
def test_a_topic_in_one_line(line: str, attributes: dict[str, str] | None) -> None:
    topic = TopicConfig(
        topic_name="T",
        read_queue_count=4,
        write_queue_count=8,
        perm=6,
        attributes=attributes,
    )
    assert parse_topic(line) == topic
    assert format_topic(topic) == line


@pytest.mark.parametrize(
    "line",
    [
        "",
        "T",
        "T 4 8 6",
        "T 4 x 6 SINGLE_TAG",
        "T 4 8 99999999999 SINGLE_TAG",
        "T 4 8 6 A B",
        "4 8 6 A",
    ],
)
def test_an_invalid_topic_line_is_rejected(line: str) -> None:
    with pytest.raises(BodyError):
        parse_topic(line)


# -- registrations --------------------------------------------------------------------------------

# What RegisterBrokerBody.encode(true) of 4.9.7 gives for five topics and two filter servers.
BINARY_4_9 = bytes.fromhex(
    "78da63606050af564ace2fcd2b492d52b232d0512ac9cc4d2d2e49cc2d50b232343236313533b7b03400b26a191818"
    "588158a224bf203359d740c140c150c14c21d8d3cfddc7353ec4d11d2167089431c22167049431c621670c9431c1"
    "21670294314597e38e564a3354d2514a33528a05007d7b3000"
)
# The same of 5.5.0, with an attribute on topic-2 and a mapping of topic-1.
BINARY_5_5 = bytes.fromhex(
    "78da75904d4bc4301086e3c1933fc14b98eb4649d2ee87b9797097821f2cca5e44429a4dd742db94343d2ca5ffddb1"
    "0a8aac878199f761e69d1942c86a00ebfb26ba008a33e8a2896ee74257fa661262593b14eb169490493a5f2c57371c"
    "b39110728e71197d5bda2b4e391574419fb3c7cdfd9d7eb9ddd061fcc102a13c81c5179608933f186668dc9983bb8e"
    "c7d6818275b67e825f33136c49ffb74c11ce4fe08b572804302824bc6179861106c81b537f9ae4486c1f42b67f3078"
    "f2c09560899223837d19e2115461aace3170adb7efa096f831eba7f5b43e543e3795d638625a01c5efeb27259a6adb"
    "bbde75a0d2f10321e36760"
)


def five_topics(attributes: dict[str, str] | None) -> dict[str, TopicConfig]:
    return {
        f"topic-{n}": TopicConfig(
            topic_name=f"topic-{n}",
            read_queue_count=n,
            write_queue_count=n + 1,
            perm=6,
            attributes={"+message.type": "FIFO"} if attributes == {} and n == 2 else attributes,
        )
        for n in range(5)
    }


REGISTRATION_4_9 = RegisterBrokerBody(
    topic_config=TopicConfigTable(
        topics=five_topics(None), data_version=DataVersion(timestamp=1234567890123, counter=0)
    ),
    filter_servers=["f1", "f2"],
)
REGISTRATION_5_5 = RegisterBrokerBody(
    topic_config=TopicConfigTable(
        topics=five_topics({}),
        data_version=DataVersion(timestamp=1234567890123, counter=0, state_version=0),
        mapping_infos={
            "topic-1": TopicQueueMappingInfo(
                topic="topic-1", queue_count=4, broker_name="b", epoch=7, current_ids={0: 1, 3: 2}
            )
        },
    ),
    filter_servers=["f1", "f2"],
)


@pytest.mark.parametrize(
    ("data", "version", "body"),
    [(BINARY_4_9, V4_9_7, REGISTRATION_4_9), (BINARY_5_5, V5_5_0, REGISTRATION_5_5)],
    ids=["4.9.7", "5.5.0"],
)
def test_binary_registrations(data: bytes, version: int, body: RegisterBrokerBody) -> None:
    assert registration.decode(data, compressed=True, broker_version=version) == body
    written = registration.encode(body, compressed=True, broker_version=version)
    assert zlib.decompress(written) == zlib.decompress(data)


@pytest.mark.parametrize("body", [REGISTRATION_4_9, REGISTRATION_5_5])
def test_json_registrations(body: RegisterBrokerBody) -> None:
    written = registration.encode(body, compressed=False, broker_version=V4_9_7)
    assert registration.decode(written, compressed=False, broker_version=V4_9_7) == body


def test_an_old_broker_sends_no_mappings() -> None:
    body = registration.decode(BINARY_5_5, compressed=True, broker_version=V4_9_7)
    assert body.topic_config.mapping_infos is None
    assert body.topic_config.topics == REGISTRATION_5_5.topic_config.topics


def section(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


VERSION = section(b'{"counter":0,"timestamp":1}')
ONE_TOPIC = b"\0\0\0\1" + section(b"T 1 1 6 SINGLE_TAG")
NO_SERVERS = section(b"[]")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "ends inside a length"),
        (b"\0\0\0", "ends inside a length"),
        (b"\0\0\1\0{}", "256 bytes is announced, 2 are left"),
        (b"\xff\xff\xff\xff{}", "-1 bytes is announced"),
        (VERSION + b"\x7f\xff\xff\xff", "lists 2147483647 topics, at most 250000"),
        (VERSION + b"\0\3\xd0\x90", "ends inside a length"),
        (VERSION + b"\0\0\0\1" + section(b"T one"), "topic settings 'one' cannot be read"),
        (VERSION + b"\0\0\0\1" + section(b"\xff 1 1 6 A"), "not UTF-8"),
        (VERSION + ONE_TOPIC, "ends inside a length"),
        (VERSION + ONE_TOPIC + section(b"{}"), "Expected `array`"),
        (section(b"no") + ONE_TOPIC + NO_SERVERS, "a value expected"),
        (VERSION + ONE_TOPIC + NO_SERVERS + b"\0\0\0\1" + section(b"x"), "a value expected"),
    ],
)
def test_damaged_registrations_are_rejected(content: bytes, problem: str) -> None:
    with pytest.raises(BodyError, match=problem):
        registration.decode(zlib.compress(content), compressed=True, broker_version=V5_5_0)


def test_a_body_that_is_not_deflated_is_rejected() -> None:
    with pytest.raises(BodyError, match="cannot be inflated"):
        registration.decode(b"{}", compressed=True, broker_version=V4_9_7)


def test_a_decompression_bomb_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tianzhou.protocol.bodies.registration.INFLATED_BYTES_MAX", 1 << 20)
    with pytest.raises(BodyError, match="inflates to more than 1048576 bytes"):
        registration.decode(zlib.compress(bytes(2 << 20)), compressed=True, broker_version=V4_9_7)


def test_a_truncated_registration_is_rejected() -> None:
    with pytest.raises(BodyError):
        registration.decode(BINARY_4_9[:40], compressed=True, broker_version=V4_9_7)
