"""Keeps the tables of a broker from claiming what its log lacks (R9, R6 e, R11).

A table that is ahead of the log loses messages: a consumer whose offset is behind the end of its
queue passes the next messages, and a delayed message that counts as delivered is not delivered
again. So the tables are adapted when the log was cut, before anything is appended to it, and once
more when the broker becomes the master.

Indexes and files that are not tables: that of timed messages is emptied with a cut, and rebuilt
from the log; that of popped messages is emptied whenever a slave starts (`pop/reviver.py`).
"""

import asyncio
import logging
from pathlib import Path

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.scheduled.service import ScheduledMessages
from tianzhou.broker.state import BrokerState
from tianzhou.errors import StoreError
from tianzhou.ha import log_truncation
from tianzhou.ha.epochs import EpochFile, Epochs
from tianzhou.remoting.scheduler import finish
from tianzhou.store.message_store import MessageStore

log = logging.getLogger(__name__)

_QUEUE_OFFSET_MAX = 2**40
"""A larger committed offset is an error of a client."""


# -- a log that is cut -----------------------------------------------------------------------------


async def truncate(
    store: MessageStore,
    epoch_file: EpochFile,
    state: BrokerState,
    scheduled: ScheduledMessages,
    to: int,
    epochs: Epochs,
    *,
    confirm: int,
) -> None:
    """Cuts the log of a slave that does not follow now, and adapts its tables.

    `epochs` are the entries that stay, `confirm` is the largest confirm offset seen. Raises
    TruncationRefused, then nothing has changed; StoreError, then the next start completes it.
    """
    # The flush may take long; what is left of it then blocks the event loop shortly.
    await asyncio.to_thread(store.flush)
    log_truncation.truncate(store, epoch_file, to, epochs, confirm=confirm)
    await finish_truncation(store, state, scheduled)


async def start_empty(
    store: MessageStore,
    epoch_file: EpochFile,
    state: BrokerState,
    scheduled: ScheduledMessages,
    saved_from: int | None,
) -> Path | None:
    """Removes the log of a slave that cannot follow, so that it copies its master's from scratch.

    First the log from `saved_from` on is saved in a side file, whose path is returned; None saves
    nothing. The caller has it leave the in-sync set before. Raises StoreError: then nothing was
    removed, or the next start completes it.
    """
    path = None
    if saved_from is not None:
        path = await asyncio.to_thread(log_truncation.save_tail, store, epoch_file, saved_from)
    await asyncio.to_thread(store.flush)
    log_truncation.remove_all(store, epoch_file)
    await finish_truncation(store, state, scheduled)
    return path


async def finish_truncation(
    store: MessageStore, state: BrokerState, scheduled: ScheduledMessages
) -> None:
    """Adapts the tables to a log that was cut, and ends the truncation; nothing if there is none.

    Also to be called at every start, before the scheduled messages are started. Raises StoreError.
    """
    if store.truncation.pending is None:
        return
    to = store.truncation.pending.to or 0
    await _limit_offsets(store, state)
    state.topics.log_end = min(state.topics.log_end, to)
    scheduled.log_truncated(to)
    if not await state.save(*scheduled.encoders(), state.topics_path):
        raise StoreError(
            "the tables of the broker could not be saved after the log was cut, so nothing is "
            "appended to it; see the log for the file, free some space, and start the broker again"
        )
    store.truncation.finish()


# -- a slave that becomes the master ---------------------------------------------------------------


async def prepare_master(
    store: MessageStore, state: BrokerState, scheduled: ScheduledMessages, config: BrokerConfig
) -> None:
    """Adapts the tables of a slave to its log, before it is the master. Raises StoreError.

    The queue offsets of the next messages are in the queues already, which have all of the log.
    """
    await _limit_offsets(store, state)
    scheduled.limit_to_log()
    _restore_topics(store, state, config)
    await _begin_queues(store, state)
    await state.save(*scheduled.encoders())


async def _limit_offsets(store: MessageStore, state: BrokerState) -> None:
    def end_of(topic: str, queue_id: int) -> int | None:
        """The end of a queue; None if the log has none of its messages, nor had before it was cut.

        Those may be older than the log, so that the offset says where the queue continues.
        """
        queue = store.queues.get(topic, queue_id)
        return queue.next_offset if queue is not None else None

    if count := await finish(state.offsets.limit(end_of)):
        log.warning("%d committed offsets were behind the end of their queues: lowered", count)


def _restore_topics(store: MessageStore, state: BrokerState, config: BrokerConfig) -> None:
    """Makes the missing topics of messages that are newer than the table of topics.

    A queue without such messages may be of a topic that was deleted.
    """
    for topic, queues in list(store.queues.by_topic.items()):
        is_newer = max(queue.end_log_offset for queue in queues.values()) > state.topics.log_end
        if is_newer and state.topics.restore(topic, max(queues), config, is_known=True):
            log.warning(
                "topic %s: made with default attributes, the master made it too late to be copied",
                topic,
            )


async def _begin_queues(store: MessageStore, state: BrokerState) -> None:
    """Lets queues of which the log has no message begin behind what consumers have read.

    The log of a slave that was empty begins with the oldest file of its master, or with the last
    one. A queue that began at 0 would give its next messages queue offsets that consumers have
    passed.
    """
    begins: dict[tuple[str, int], int] = {}
    for topic, _, queues in state.offsets.progress():
        for queue_id, queue_offset in queues.items():
            if 0 < queue_offset <= _QUEUE_OFFSET_MAX and topic in state.topics.topics:
                key = (topic, queue_id)
                begins[key] = max(queue_offset, begins.get(key, 0))
    stored = store.with_unconfirmed
    begins = {key: at for key, at in begins.items() if not stored.max_offset(*key)}
    for (topic, queue_id), queue_offset in begins.items():
        store.begin_queue(topic, queue_id, queue_offset)
    if begins:
        log.info("%d queues without messages begin behind their consumers", len(begins))
        await asyncio.to_thread(store.flush)
