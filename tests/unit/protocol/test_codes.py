"""The table of codes."""

import pytest

from tianzhou.protocol.codes import RequestCode, ResponseCode


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("SEND_MESSAGE", 10),
        ("PULL_MESSAGE", 11),
        ("UPDATE_AND_CREATE_TOPIC_LIST", 18),
        ("HEART_BEAT", 34),
        ("UPDATE_AND_CREATE_ACL_CONFIG", 50),
        ("GET_BROKER_CLUSTER_ACL_CONFIG", 54),
        ("GET_TIMER_METRICS", 61),
        ("REGISTER_BROKER", 103),
        ("GET_ROUTEINFO_BY_TOPIC", 105),
        ("SEND_MESSAGE_V2", 310),
        ("QUERY_DATA_VERSION", 322),
        ("ADD_WRITE_PERM_OF_BROKER", 327),
        ("LITE_PULL_MESSAGE", 361),
        ("UPDATE_AND_CREATE_STATIC_TOPIC", 513),
        ("BROKER_HEARTBEAT", 904),
        ("CONTROLLER_APPLY_BROKER_ID", 1013),
        ("SET_COMMITLOG_READ_MODE", 2004),
        ("AUTH_LIST_ACL", 3010),
        ("POP_MESSAGE", 200050),
        ("BATCH_ACK_MESSAGE", 200151),
    ],
)
def test_request_codes_equal_rocketmqs(name: str, number: int) -> None:
    assert RequestCode[name] == number
    assert RequestCode(number).name == name


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("SUCCESS", 0),
        ("SYSTEM_BUSY", 2),
        ("REQUEST_CODE_NOT_SUPPORTED", 3),
        ("TOPIC_NOT_EXIST", 17),
        ("PULL_OFFSET_MOVED", 21),
        ("QUERY_NOT_FOUND", 22),
        ("CONSUMER_NOT_ONLINE", 206),
        ("FLOW_CONTROL", 215),
        ("GO_AWAY", 1500),
        ("CONTROLLER_BROKER_LIVE_INFO_NOT_EXISTS", 2016),
        ("POLICY_NOT_EXIST", 3002),
    ],
)
def test_response_codes_equal_rocketmqs(name: str, number: int) -> None:
    assert ResponseCode[name] == number


def test_request_codes_are_unique_and_sorted() -> None:
    members = RequestCode.__members__
    assert [member.value for member in RequestCode] == sorted(member for member in RequestCode)
    assert len(members) == len(set(RequestCode)) == 178


def test_only_three_response_codes_have_two_meanings() -> None:
    aliases = {
        name: code.name for name, code in ResponseCode.__members__.items() if name != code.name
    }
    assert aliases == {
        "UPDATE_AND_CREATE_ACL_CONFIG_FAILED": "POLLING_FULL",
        "DELETE_ACL_CONFIG_FAILED": "POLLING_TIMEOUT",
        "UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED": "BROKER_NOT_EXIST",
    }
