"""Every request code is either refused or served by a slave; a master serves all of them."""

import pytest

from tianzhou.broker.config import BrokerConfig, load_broker_config
from tianzhou.broker.requests.slave_refusals import (
    REFUSED_BY_SLAVES,
    SERVED_BY_SLAVES,
    check_role,
)
from tianzhou.broker.requests.table import HANDLERS
from tianzhou.config.settings import Given
from tianzhou.errors import RequestError
from tianzhou.protocol.codes import RequestCode, ResponseCode

RETRIED_BY_STOCK_CLIENTS = {
    ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR,
    ResponseCode.SYSTEM_BUSY, ResponseCode.NO_PERMISSION,
}  # fmt: skip
"""`DefaultMQProducer.retryResponseCodes` of 4.9.7 and 5.5.0, as far as brokers return them."""


def config_of(role: str, broker_id: int) -> BrokerConfig:
    pairs = {"brokerRole": role, "brokerId": broker_id, "brokerName": "broker-a"}
    given = [Given(key, str(value), "test") for key, value in pairs.items()]
    return load_broker_config(environ={}, flags=given).config


SLAVE = config_of("SLAVE", 1)


def refusal_of(code: int) -> RequestError:
    with pytest.raises(RequestError) as caught:
        check_role(SLAVE, code)
    return caught.value


@pytest.mark.parametrize("code", sorted(HANDLERS))
def test_every_code_that_is_handled_is_classified(code: int) -> None:
    assert (code in REFUSED_BY_SLAVES) != (code in SERVED_BY_SLAVES), RequestCode(code).name


def test_masters_refuse_nothing() -> None:
    for role in ("ASYNC_MASTER", "SYNC_MASTER"):
        config = config_of(role, 0)
        for code in HANDLERS:
            check_role(config, code)


def test_slaves_serve_the_rest() -> None:
    for code in SERVED_BY_SLAVES:
        check_role(SLAVE, code)


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_REPLY_MESSAGE_V2,
    ],
)  # fmt: skip
def test_refused_sends_are_retried_by_stock_clients(code: int) -> None:
    refusal = refusal_of(code)
    assert refusal.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert refusal.code in RETRIED_BY_STOCK_CLIENTS
    assert "broker-a[1] is a slave" in refusal.remark


@pytest.mark.parametrize("code", [RequestCode.END_TRANSACTION, RequestCode.RECALL_MESSAGE])
def test_ends_of_transactions_and_recalls_get_the_code_of_stock_slaves(code: int) -> None:
    """EndTransactionProcessor, RecallMessageProcessor."""
    assert refusal_of(code).code == ResponseCode.SLAVE_NOT_AVAILABLE


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, RequestCode.DELETE_SUBSCRIPTIONGROUP,
    ],
)  # fmt: skip
def test_changes_of_tables_get_the_remark_of_stock_slaves(code: int) -> None:
    """AdminBrokerProcessor.validateSlave."""
    refusal = refusal_of(code)
    assert refusal.code == ResponseCode.SYSTEM_ERROR
    assert refusal.remark == (
        "Can't modify topic or subscription group from slave broker, "
        "please execute it from master broker."
    )


def test_resets_of_offsets_get_the_remark_of_stock_slaves() -> None:
    """AdminBrokerProcessor.resetOffsetInner of 5.x."""
    refusal = refusal_of(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    assert (refusal.code, refusal.remark) == (
        ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker",
    )  # fmt: skip


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME, RequestCode.NOTIFICATION,
        RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ,
    ],
)  # fmt: skip
def test_pops_and_locks_are_refused_with_the_reason(code: int) -> None:
    refusal = refusal_of(code)
    assert refusal.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "broker-a[1] is a slave" in refusal.remark
