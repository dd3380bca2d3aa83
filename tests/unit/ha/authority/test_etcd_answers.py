"""Answers and errors of the gateway, as the versions of etcd write them."""

import pytest

from tianzhou.errors import ProtocolError
from tianzhou.ha.authority.etcd_answers import (
    Header,
    LeaseAnswer,
    RangeAnswer,
    Refusal,
    TxnAnswer,
    WatchAnswer,
    decode,
    decode_streamed,
    refusal,
)

HEADER = b'"header":{"cluster_id":"12","member_id":"13","revision":"3","raft_term":"2"}'


def test_zero_fields_are_absent() -> None:
    failed = decode(TxnAnswer, b"{" + HEADER + b"}")
    assert failed == TxnAnswer(Header("12", "13", 3, 2), succeeded=False)
    gone = decode_streamed(LeaseAnswer, b'{"result":{' + HEADER + b',"ID":"123"}}')
    assert (gone.id, gone.ttl_s) == ("123", 0)
    watched = decode_streamed(
        WatchAnswer,
        b'{"result":{' + HEADER + b',"events":[{"kv":{"key":"YQ==","mod_revision":"3"}},'
        b'{"type":"DELETE","kv":{"key":"YQ==","mod_revision":"4"}}]}}',
    )
    assert [(each.type, each.kv.key, each.kv.mod_revision) for each in watched.events] == [
        ("PUT", b"a", 3), ("DELETE", b"a", 4),
    ]  # fmt: skip


def test_a_failed_transaction_has_the_answers_of_its_other_branch() -> None:
    answer = decode(
        TxnAnswer,
        b"{" + HEADER + b',"responses":[{"response_range":{"header":{"revision":"3"},"kvs":'
        b'[{"key":"YQ==","mod_revision":"3","lease":"77","value":"Yg=="}],"count":"1"}}]}',
    )
    found = answer.responses[0].response_range
    assert found is not None
    assert (found.kvs[0].value, found.kvs[0].lease) == (b"b", "77")


@pytest.mark.parametrize(
    "body",
    [
        b"", b"<html>", b"[]", b'{"header":7}', b'{"header":{"revision":"-1"}}',
        b'{"header":{"revision":"99999999999999999999"}}', b'{"kvs":[{"key":"not base64!"}]}',
        b'{"header":{"cluster_id":"\xff"}}', b"[" * 100_000,
    ],
)  # fmt: skip
def test_other_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(RangeAnswer, body)


def test_a_streamed_document_is_a_result_or_an_error() -> None:
    with pytest.raises(ProtocolError, match="neither"):
        decode_streamed(LeaseAnswer, b"{}")
    with pytest.raises(Refusal, match="no leader"):
        decode_streamed(LeaseAnswer, b'{"error":{"code":14,"message":"etcdserver: no leader"}}')


NO_LEADER = [
    b'{"error":"etcdserver: no leader","message":"etcdserver: no leader","code":14}',
    b'{"code":14,"message":"etcdserver: no leader","details":[]}',
    b'{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader"}}',
    b'{"error":{"code":14,"message":"etcdserver: no leader"}}',
]


@pytest.mark.parametrize("body", NO_LEADER)
def test_errors_of_all_versions_are_read(body: bytes) -> None:
    error = refusal(503, body)
    assert (error.code, error.had_no_effect, error.is_lasting) == (14, True, False)
    assert "start them" in str(error)


def error_of(message: str, code: int) -> Refusal:
    return refusal(500, f'{{"code":{code},"message":"{message}"}}'.encode())


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("etcdserver: request timed out", 14),
        ("etcdserver: request timed out, possibly due to previous leader failure", 14),
        ("etcdserver: leader changed", 14),
        ("etcdserver: server stopped", 14),
        ("transport is closing", 14),
        ("context deadline exceeded", 4),
        ("not a primary lessor", 2),
        ("anything", 13),
    ],
)
def test_a_transaction_may_be_carried_out_after_these_errors(message: str, code: int) -> None:
    error = error_of(message, code)
    assert not error.had_no_effect
    assert not error.is_lasting


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("etcdserver: permission denied", 7),
        ("etcdserver: invalid auth token", 16),
        ("etcdserver: user name is empty", 3),
        ("etcdserver: revision of auth store is old", 3),
        ("etcdserver: mvcc: database space exceeded", 8),
        ("etcdserver: too many requests", 8),
        ("etcdserver: rpc not supported for learner", 14),
        ("etcdserver: request is too large", 3),
    ],
)
def test_a_transaction_is_not_carried_out_after_these_errors(message: str, code: int) -> None:
    assert error_of(message, code).had_no_effect


@pytest.mark.parametrize(
    ("message", "code", "wants_login"),
    [
        ("etcdserver: invalid auth token", 16, True),
        ("etcdserver: user name is empty", 3, True),
        ("etcdserver: permission denied", 7, True),
        ("etcdserver: revision of auth store is old", 3, True),
        ("etcdserver: authentication failed, invalid user ID or password", 3, False),
        ("etcdserver: no leader", 14, False),
    ],
)
def test_which_errors_a_new_login_may_end(message: str, code: int, wants_login: bool) -> None:
    assert error_of(message, code).wants_login is wants_login


@pytest.mark.parametrize(
    ("status", "body", "part"),
    [
        (404, b"404 page not found\n", "--enable-grpc-gateway=true"),
        (404, b'{"code":5}', "--enable-grpc-gateway=true"),
        (502, b"<html>Bad Gateway</html>", "<html>Bad Gateway</html>': this is not an answer"),
        (500, b"", "an empty body"),
        (400, b"Client sent an HTTP request to an HTTPS server.\n", "write https://"),
        (500, b'{"code":"7","message":[]}', "not an answer of etcd"),
        (500, b'{"error":{"code":7}}', "not an answer of etcd"),
        (500, b"\xff\xfe", "not an answer of etcd"),
    ],
)
def test_errors_of_other_servers_are_shown(status: int, body: bytes, part: str) -> None:
    error = refusal(status, body)
    assert part in str(error)
    assert str(status) in str(error)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_after_errors_of_proxies_a_transaction_may_be_carried_out(status: int) -> None:
    assert not refusal(status, b"<html>").had_no_effect


def test_a_message_cannot_break_a_log_line() -> None:
    assert "\n" not in str(error_of("a\\nb\\u001b[31m", 13))
