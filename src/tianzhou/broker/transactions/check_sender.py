"""Sends CHECK_TRANSACTION_STATE to a producer of the group that sent a half message."""

import logging
import random
from collections.abc import Callable

import msgspec

from tianzhou.broker.tables.clients import ProducerTable
from tianzhou.broker.transactions.rules import real_queue
from tianzhou.errors import RemotingError
from tianzhou.message import Host, StoredMessage
from tianzhou.protocol import properties
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import encode
from tianzhou.protocol.headers.send import CheckTransactionStateRequest
from tianzhou.protocol.records.message_id import encode_offset_id
from tianzhou.protocol.records.record import encode_stored
from tianzhou.remoting.connection import Connection

log = logging.getLogger(__name__)

_PRODUCERS_TRIED_MAX = 3

MayCheck = Callable[[Connection, str | None, str], bool]
"""Whether the account of a connection may write a topic, and so receive a half of it."""


def send_check(
    half: StoredMessage,
    *,
    producers: ProducerTable[Connection],
    broker_name: str,
    store_host: Host,
    may_check: MayCheck,
) -> bool:
    """Ask a random producer of the group that may write the topic; False if there is none."""
    group = half.properties.get(properties.PRODUCER_GROUP, "")
    queue = real_queue(half)
    if queue is None:
        return False
    # A heartbeat can name any producer group, and the check contains the body of the half.
    members = [
        connection
        for connection, client in producers.groups.get(group, {}).items()
        if may_check(connection, client.account, queue[0])
    ]
    for connection in random.sample(members, min(len(members), _PRODUCERS_TRIED_MAX)):
        try:
            connection.oneway(_command(half, *queue, broker_name, store_host))
        except RemotingError as e:
            log.debug("producer group %s: no check sent to %s: %s", group, connection.peer, e)
        else:
            return True
    return False


def _command(
    half: StoredMessage, topic: str, queue_id: int, broker_name: str, store_host: Host
) -> Command:
    unique = half.properties.get(properties.UNIQUE_KEY)
    header = CheckTransactionStateRequest(
        target_broker=broker_name,
        topic=half.topic,
        queue_offset=half.queue_offset,
        log_offset=half.log_offset,
        msg_id=unique,
        transaction_id=unique,
        offset_msg_id=encode_offset_id(store_host, half.log_offset),
    )
    shown = msgspec.structs.replace(half, topic=topic, queue_id=queue_id)
    return Command(
        code=RequestCode.CHECK_TRANSACTION_STATE,
        ext_fields=encode(header),
        body=encode_stored(shown),
    )
