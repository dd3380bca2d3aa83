"""Typed headers: what is required, how values are read and written, which code has which header."""

import importlib
import pkgutil

import msgspec
import pytest
from tests.support.header_table import REQUEST_HEADERS, RESPONSE_HEADERS

from tianzhou.errors import FieldError
from tianzhou.protocol import headers
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.headers import Header, decode, encode
from tianzhou.protocol.headers.auth import CreateAccessConfigRequest
from tianzhou.protocol.headers.codec import GroupQueueHeader, RpcHeader, TopicHeader
from tianzhou.protocol.headers.namesrv import (
    BrokerHeartbeatRequest,
    BrokerRequest,
    GetKVConfigResponse,
    GetRouteInfoRequest,
    RegisterBrokerRequest,
)
from tianzhou.protocol.headers.offsets import ResetOffsetRequest
from tianzhou.protocol.headers.pull import PullMessageRequest, QueryMessageRequest
from tianzhou.protocol.headers.send import (
    SendMessageRequest,
    SendMessageRequestV2,
    SendMessageResponse,
)

REGISTRATION = {
    "brokerName": "broker-a",
    "brokerAddr": "10.0.0.1:10911",
    "clusterName": "DefaultCluster",
    "haServerAddr": "10.0.0.1:10912",
    "brokerId": "0",
    "compressed": "false",
    "bodyCrc32": "703350179",
}

# The header of a message as the stock client of 4.9.7 sends it.
SEND_V2 = {
    "a": "producers",
    "b": "TopicTest",
    "c": "TBW102",
    "d": "4",
    "e": "3",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "UNIQ_KEY\x01AC110001\x02WAIT\x01true",
    "j": "0",
    "k": "false",
    "m": "false",
    "n": "broker-a",
}


def header_types() -> list[type[Header]]:
    """Every header of the package, but not the bases."""
    found: list[type[Header]] = []
    for module_info in pkgutil.iter_modules(headers.__path__):
        module = importlib.import_module(f"{headers.__name__}.{module_info.name}")
        found += [
            value
            for value in vars(module).values()
            if isinstance(value, type)
            and issubclass(value, Header)
            and value.__module__ == module.__name__
        ]
    return [
        found_type
        for found_type in found
        if found_type not in (Header, RpcHeader, TopicHeader, GroupQueueHeader)
    ]


# -- reading --------------------------------------------------------------------------------------


def test_a_registration_is_read() -> None:
    assert decode(RegisterBrokerRequest, REGISTRATION) == RegisterBrokerRequest(
        broker_name="broker-a",
        broker_addr="10.0.0.1:10911",
        cluster_name="DefaultCluster",
        ha_server_addr="10.0.0.1:10912",
        broker_id=0,
        compressed=False,
        body_crc32=703350179,
    )


def test_single_letters_have_the_meaning_of_the_long_names() -> None:
    header = decode(SendMessageRequestV2, SEND_V2)
    assert header == SendMessageRequestV2(
        producer_group="producers",
        topic="TopicTest",
        default_topic="TBW102",
        default_topic_queue_count=4,
        queue_id=3,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        flag=0,
        properties="UNIQ_KEY\x01AC110001\x02WAIT\x01true",
        reconsume_times=0,
        unit_mode=False,
        batch=False,
        broker_name="broker-a",
    )
    long = set(SendMessageRequest.__struct_fields__)
    assert set(SendMessageRequestV2.__struct_fields__) - long == {"broker_name"}
    assert long <= set(SendMessageRequestV2.__struct_fields__)


def test_fields_that_5_x_adds_are_read() -> None:
    header = decode(
        GetRouteInfoRequest,
        {
            "topic": "T",
            "acceptStandardJsonOnly": "true",
            "ns": "space",
            "nsd": "false",
            "bname": "broker-a",
            "oway": "true",
            "lo": "false",
        },
    )
    assert header == GetRouteInfoRequest(
        topic="T",
        accept_standard_json_only=True,
        namespace="space",
        namespaced=False,
        target_broker="broker-a",
        oneway=True,
        logical=False,
    )


def test_unknown_fields_are_ignored() -> None:
    extended = REGISTRATION | {"AccessKey": "key", "": "", "broker_name": "another"}
    assert decode(RegisterBrokerRequest, extended) == decode(RegisterBrokerRequest, REGISTRATION)


@pytest.mark.parametrize("text", ["true", "TRUE", "True", "tRuE", "1"])
def test_true_in_any_case(text: str) -> None:
    assert decode(RegisterBrokerRequest, REGISTRATION | {"compressed": text}).compressed is True


@pytest.mark.parametrize("text", ["false", "FALSE", "False", "0"])
def test_false_in_any_case(text: str) -> None:
    header = decode(RegisterBrokerRequest, REGISTRATION | {"enableActingMaster": text})
    assert header.enable_acting_master is False


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("-0", 0),
        ("+7", 7),
        ("007", 7),
        ("-9223372036854775808", -(2**63)),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_integers_as_java_reads_them(text: str, number: int) -> None:
    header = decode(BrokerRequest, REGISTRATION | {"brokerId": text})
    assert header.broker_id == number
    # The slow path must leave the other fields as they are.
    assert header.cluster_name == "DefaultCluster"


# -- refusing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["brokerName", "brokerAddr", "clusterName", "brokerId"])
def test_the_error_of_a_missing_field_names_it(name: str) -> None:
    fields = {key: value for key, value in REGISTRATION.items() if key != name}
    with pytest.raises(FieldError, match=f"RegisterBrokerRequest: field '{name}' is missing"):
        decode(RegisterBrokerRequest, fields)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("brokerId", "", "'', an integer of 64 bits is expected"),
        ("brokerId", "zero", "'zero', an integer of 64 bits is expected"),
        ("brokerId", " 1", "' 1', an integer of 64 bits is expected"),
        ("brokerId", "1_0", "'1_0', an integer of 64 bits is expected"),
        ("brokerId", "0x1", "'0x1', an integer of 64 bits is expected"),
        ("brokerId", "--1", "'--1', an integer of 64 bits is expected"),
        ("brokerId", "1e3", "'1e3', an integer of 64 bits is expected"),
        ("brokerId", "1E3", "'1E3', an integer of 64 bits is expected"),
        ("brokerId", "123.0", "'123.0', an integer of 64 bits is expected"),
        ("brokerId", "-0.0", "'-0.0', an integer of 64 bits is expected"),
        ("brokerId", "0e0", "'0e0', an integer of 64 bits is expected"),
        ("brokerId", "NaN", "'NaN', an integer of 64 bits is expected"),
        ("brokerId", "null", "'null', an integer of 64 bits is expected"),
        ("brokerId", "[1]", "'[1]', an integer of 64 bits is expected"),
        ("brokerId", "1 ", "'1 ', an integer of 64 bits is expected"),
        ("brokerId", "1e999", "'1e999', an integer of 64 bits is expected"),
        ("brokerId", "\u0661", "'\u0661', an integer of 64 bits is expected"),
        ("brokerId", "9223372036854775808", "an integer of 64 bits is expected"),
        ("brokerId", "-9223372036854775809", "an integer of 64 bits is expected"),
        ("bodyCrc32", "2147483648", "'2147483648', an integer of 32 bits is expected"),
        ("bodyCrc32", "-2147483649", "'-2147483649', an integer of 32 bits is expected"),
        ("compressed", "yes", "'yes', true or false is expected"),
        ("compressed", "", "'', true or false is expected"),
    ],
)
def test_the_error_of_an_invalid_value_names_the_expected_type(
    name: str, value: str, expected: str
) -> None:
    with pytest.raises(FieldError) as refused:
        decode(RegisterBrokerRequest, REGISTRATION | {name: value})
    assert str(refused.value).startswith(f"RegisterBrokerRequest: field '{name}' is ")
    assert str(refused.value).endswith(expected)


def test_a_long_value_is_shortened_in_the_error() -> None:
    with pytest.raises(FieldError) as refused:
        decode(RegisterBrokerRequest, REGISTRATION | {"brokerId": "9" * 100_000})
    assert len(str(refused.value)) < 200


# -- writing --------------------------------------------------------------------------------------


def test_headers_round_trip() -> None:
    assert encode(decode(SendMessageRequestV2, SEND_V2)) == SEND_V2
    assert encode(decode(RegisterBrokerRequest, REGISTRATION)) == REGISTRATION


def test_absent_fields_are_left_out() -> None:
    assert encode(GetKVConfigResponse()) == {}
    assert encode(SendMessageResponse(msg_id="0A", queue_id=1, queue_offset=2)) == {
        "msgId": "0A",
        "queueId": "1",
        "queueOffset": "2",
    }


def test_fields_that_java_always_writes_are_written() -> None:
    written = encode(CreateAccessConfigRequest(access_key="key"))
    assert written == {"accessKey": "key", "admin": "false"}


def test_irregular_wire_names() -> None:
    heartbeat = BrokerHeartbeatRequest(
        cluster_name="c", broker_addr="a", broker_name="b", heartbeat_timeout_millis=5
    )
    assert encode(heartbeat)["heartbeatTimeoutMills"] == "5"
    query = QueryMessageRequest(
        topic="t", key="k", max_count=32, begin_timestamp=0, end_timestamp=1, unique_key=True
    )
    assert encode(query)["_UNIQUE_KEY_QUERY"] == "true"
    pull = PullMessageRequest(
        consumer_group="g",
        topic="t",
        queue_id=0,
        queue_offset=0,
        max_msg_count=32,
        sys_flag=0,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        proxy_forward_client_id="me",
    )
    assert encode(pull)["proxyFrowardClientId"] == "me"
    reset = ResetOffsetRequest(topic="t", group="g", timestamp=-1, is_force=True)
    assert encode(reset)["isForce"] == "true"


# -- the tables -----------------------------------------------------------------------------------


def test_every_header_belongs_to_a_code() -> None:
    tabled = set(REQUEST_HEADERS.values()) | set(RESPONSE_HEADERS.values())
    assert set(header_types()) - tabled == set()


def test_request_and_response_headers_are_distinct() -> None:
    for code, header_type in REQUEST_HEADERS.items():
        assert "Request" in header_type.__name__, code
    for code, header_type in RESPONSE_HEADERS.items():
        assert header_type.__name__.endswith("Response"), code


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.PULL_MESSAGE,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.REGISTER_BROKER,
        RequestCode.POP_MESSAGE,
        RequestCode.EXCHANGE_BROKER_HA_INFO,
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
    ],
)
def test_requests_with_fields_have_a_header(code: RequestCode) -> None:
    assert msgspec.structs.fields(REQUEST_HEADERS[code])


@pytest.mark.parametrize("header_type", header_types(), ids=lambda header: header.__name__)
def test_no_wire_name_is_used_twice_and_nothing_can_be_changed(header_type: type[Header]) -> None:
    names = [field.encode_name for field in msgspec.structs.fields(header_type)]
    assert len(names) == len(set(names))
    assert header_type.__struct_config__.frozen
