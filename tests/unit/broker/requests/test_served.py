"""Which requests are refused while a broker stores no messages."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.support.store import open_store, small_config

from tianzhou.broker.background.arrivals import Arrivals
from tianzhou.broker.config import load_broker_config
from tianzhou.broker.requests.served import check_served
from tianzhou.broker.storing.durability import Durability
from tianzhou.broker.storing.serving import Refusal, Serving
from tianzhou.config.live import LiveSettings
from tianzhou.errors import RequestError
from tianzhou.ha.roles.reasons import Code
from tianzhou.protocol.codes import RequestCode, ResponseCode

SEND, PULL = RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE
TOPIC = RequestCode.UPDATE_AND_CREATE_TOPIC
AWAY, ERROR = ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR


@pytest.fixture
async def serving(tmp_path: Path) -> AsyncGenerator[Serving]:
    settings = LiveSettings(load_broker_config(environ={}))
    with open_store(small_config(tmp_path)) as store:
        yield Serving(store, Durability(store, settings), Arrivals(), lambda: 2)


@pytest.mark.parametrize(
    ("reason", "code", "refused"),
    [
        (Code.SWITCHING, AWAY, {SEND, TOPIC}),
        (Code.SUSPENDED, AWAY, {SEND, TOPIC}),
        (Code.NOT_MASTER, AWAY, {SEND, TOPIC}),
        (Code.CONNECTING, AWAY, {SEND}),
        (Code.NOT_ENOUGH_IN_SYNC, ERROR, {SEND}),
    ],
)
async def test_tables_change_unless_another_broker_may_be_the_master(
    serving: Serving, reason: Code, code: ResponseCode, refused: set[RequestCode]
) -> None:
    serving.refuse(writes=Refusal(code, "why", reason.value), reads=None)
    for request in (SEND, TOPIC, PULL):
        if request in refused:
            with pytest.raises(RequestError, match="why") as found:
                check_served(serving, request)
            assert found.value.code == code
        else:
            check_served(serving, request)
    assert serving.refused == {reason.value: 1}
