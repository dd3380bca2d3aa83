"""Which requests store messages, and which show them: what automatic failover refuses at times."""

from typing import Final

from tianzhou.broker.storing.serving import Refusal, Serving
from tianzhou.errors import RequestError
from tianzhou.ha.roles.reasons import Code
from tianzhou.protocol.codes import RequestCode, ResponseCode

WRITES: Final = frozenset(
    (
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.RECALL_MESSAGE,
    )
)
"""Refused at the entrance, so that nothing else is changed for them, no topic is created. What the
broker stores by itself (due messages, revived pops, checks) is refused by the store."""

TABLES: Final = frozenset(
    (
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
    )
)
"""Refused where another broker is, or is about to become, the master: during a planned switch it
copies the tables when writers have stopped, and would not have what is changed later. Missing
replicas do not prevent them."""

READS: Final = frozenset(
    (
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    )
)

ENDS: Final = frozenset((RequestCode.GET_MAX_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP))
"""Answered with the end of a queue, at times. The answers never go back, also after a switch: a
client that continues from there would read again, or take messages for lost."""


def check_served(serving: Serving, code: int) -> None:
    """Raises RequestError for a request that is refused now."""
    refusal = serving.writes if code in WRITES else serving.reads if code in READS else None
    if code in TABLES and _may_be_elsewhere(serving.writes):
        refusal = serving.writes
    if refusal is None and code in ENDS:
        refusal = serving.ends
    if refusal is not None:
        if code in WRITES:
            serving.refused[refusal.reason] += 1
        raise RequestError(refusal.code, refusal.text)


def _may_be_elsewhere(writes: Refusal | None) -> bool:
    """Whether messages are refused as another broker is, or is about to become, the master."""
    if writes is None or writes.reason == Code.CONNECTING.value:
        return False
    return writes.code == ResponseCode.SERVICE_NOT_AVAILABLE
