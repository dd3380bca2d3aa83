"""The kernel's fast path in the broker: which requests it may serve, and when responses are sent.

    receive buffer -> kernel feed -> sends stored, pulls answered: one block of responses
                   -> anything else, frame by frame: the handlers, in order

The sends of one loop iteration, of all connections, are written to the log at once, at the end of
the iteration or before anything else is written; only then are the responses sent. If the write
fails, all of these sends are refused.

The handlers in `handlers/send.py` and `handlers/pull.py` are the reference: the feed serves a
request only if its result is byte for byte theirs, and hands it back unchanged otherwise. An
ordinary send goes

- to a topic and a queue that the feed knows: the topic exists, is writable, is neither a system
  topic nor a retry or dead-letter topic, and the queue has had a message from the handlers,
- without a property that makes it a message of another kind (`SPECIAL_PROPERTIES`),
- with a header in its usual form, sizes within their limits, and space in the current files.

An ordinary pull finds messages by tags, for a group that the handlers have served messages of that
topic, under tables that have not changed since, and none of them has to be read from disk. Its
response is written from the mapped log to the socket, as far as the socket accepts it.

A slave stores no sends, and commits no offsets with pulls; it serves pulls if slaveReadEnable is
true. The feed suggests the broker ids of the group, as `handlers/read_redirect.py` does.

What forbids all of them (settings, a full disk, overload) is checked here, once per loop iteration.
Tables are not pushed to the feed: when their version has changed they are compared, changed entries
are forgotten, and learned again from the next request that the handlers answer.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import lru_cache

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.handlers import read_redirect
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.handlers.send import born_host
from tianzhou.broker.storing import disk_prefetch
from tianzhou.broker.storing.durability import Held, with_outcome
from tianzhou.broker.storing.redirects import SPECIAL_PROPERTIES
from tianzhou.broker.tables.clients import Subscription
from tianzhou.errors import StoreError, TianzhouError
from tianzhou.limits import BATCH_KEYS_MAX, BATCH_MESSAGES_MAX
from tianzhou.names import (
    DLQ_TOPIC_PREFIX,
    PERM_READ,
    PERM_WRITE,
    RETRY_TOPIC_PREFIX,
    UNSENDABLE_TOPICS,
    is_system_topic,
)
from tianzhou.protocol import host
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.topics import MULTI_TAG, TopicConfig
from tianzhou.protocol.headers.pull import HAS_SUBSCRIPTION, PullMessageRequest
from tianzhou.protocol.kernel import Feed
from tianzhou.protocol.version import CURRENT_VERSION
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.scheduler import BusyPoll
from tianzhou.store.reading import NO_LIMIT

log = logging.getLogger(__name__)

_TOPIC_LENGTH_MAX = 127

Granted = tuple[str, str]
"""Topic and group."""


class FastPath:
    """The kernel's feed on one store."""

    def __init__(
        self,
        feed: Feed,
        deps: Deps,
        frame_max_bytes: int,
        is_free_topic: Callable[[str], bool] = lambda _: True,
        has_waiting: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_free_topic` returns whether requests for a topic may bypass the handlers.

        `has_waiting` returns whether requests other than pulls wait for messages.
        """
        self._is_free_topic = is_free_topic
        self._has_waiting = has_waiting
        self._feed = feed
        self._deps = deps
        self._frame_max_bytes = frame_max_bytes
        self._is_broken = False
        self._config: BrokerConfig | None = None
        self._may_store = self._may_read = self._waits = False
        self._serves_readers = True
        self._versions: tuple[object, object, int] = (None, None, 0)
        self._known: dict[str, TopicConfig] = {}
        self._inline: set[Granted] = set()
        self._registered: dict[Granted, Subscription] = {}
        self._kernel_memory = deps.store.attach_feed(feed, self._admit)
        self._kernel_memory.commit = self.commit_sends
        deps.stats.collect = self._collect
        self._loop = asyncio.get_running_loop()
        self._busy_poll = BusyPoll(self._loop.call_soon)
        self._in_iteration = self._is_scheduled = False
        self._now_ms = self._budget = 0
        self._confirmed_log_offset = NO_LIMIT
        """What the feed knows of it."""
        feed.set_max_offset(deps.store.max_offset_of)
        self._unsent: list[Held] = []
        self._last: Connection | None = None
        """The connection of the last buffer."""

    def serve(self, connection: Connection, view: memoryview, at: int) -> tuple[int, int] | None:
        """Serve the ordinary requests at the front; see `remoting.connection.Feed`."""
        if self._is_broken:
            return None
        try:
            if not self._in_iteration and not self._begin_iteration():
                return None
            host_bytes = packed_host(connection.peer)
            start, stop, answers, send_count, commits, written_bytes = self._feed.feed(
                view, at, host_bytes, self._now_ms, self._budget, connection.socket
            )
            if written_bytes:
                connection.wrote(written_bytes)
        except Exception:  # a bug of the feed; nothing of this iteration is stored
            log.exception("the kernel's fast path failed; the broker continues without it")
            self._disable()
            return None
        if send_count:
            self._unsent.append((connection, answers, send_count))
            connection.deferred_by = self.commit_sends
        elif answers:
            if connection.deferred_by is not None and not self._waits:
                self._unsent.append((connection, answers, 0))  # so that responses keep their order
            else:
                connection.send_frames(answers)
                connection.begin_direct()
        if commits is not None and not self._deps.settings.config.is_slave:
            for topic, group, queue_id, queue_offset in commits:
                self._deps.offsets.commit(group, topic, queue_id, queue_offset)
        if start != stop:
            # The handlers continue, or the feed does when files have space again.
            self.commit_sends()
        elif not self._is_scheduled:
            if connection is self._last:
                # It seems to be the only active one: do not wait for others.
                self.commit_sends()
                self._busy_poll.answered()
            else:
                self._is_scheduled = True
                self._loop.call_soon(self._end_iteration)
        self._last = connection
        return start, stop

    # -- iterations --------------------------------------------------------------------------------

    def _begin_iteration(self) -> bool:
        """Whether the feed can serve requests; if no file can be mapped now, the handlers do."""
        now_ms = self._now_ms = self._deps.clock()
        self._budget = self._send_budget(now_ms)
        confirmed = self._deps.store.confirmed_log_offset
        if confirmed != self._confirmed_log_offset:
            self._confirmed_log_offset = confirmed
            self._feed.set_confirmed(confirmed)
        try:
            self._kernel_memory.renew()
        except OSError as error:
            log.debug("the kernel's fast path cannot be used now: %s", error)
            return False
        self._in_iteration = True
        return True

    def _end_iteration(self) -> None:
        self._is_scheduled = False
        self.commit_sends()

    def commit_sends(self) -> None:
        """Write the sends of this loop iteration, then send their responses."""
        self._in_iteration = False
        unsent = self._unsent
        if not unsent:
            return
        self._unsent = []
        deps, store = self._deps, self._deps.store
        started_ms = deps.steady()
        try:
            done = self._feed.end_batch()
            assert done is not None
            # Arrivals of ordinary messages matter to parked requests only; those that wait to be
            # confirmed matter to requests that are parked meanwhile, too.
            has_waiting = (
                len(self._deps.parked) > 0
                or self._has_waiting()
                or self._confirmed_log_offset != NO_LIMIT
            )
            store.commit_fed(done, self._now_ms, notify=has_waiting)
        except StoreError as error:
            log.warning("sends of the fast path could not be stored: %s", error)
            self._kernel_memory.revoke()
            self._refuse(unsent, error)
            return
        except Exception:  # as above
            log.exception("the kernel's fast path failed; the broker continues without it")
            self._unsent = unsent
            self._disable()
            return
        took_ms = deps.steady() - started_ms
        if took_ms > 0:
            deps.gate.note_append(deps.settings.config, started_ms, started_ms + took_ms)
            deps.stats.took(took_ms)
        # A role may have changed since the feed served these sends; `hold` knows the new one.
        if not self._waits and deps.settings.config is self._config:
            for connection, answers, _ in unsent:
                connection.send_deferred(answers)
            return
        for connection, _, _ in unsent:
            connection.send_deferred(b"")
        # As with handlers, each send counts as waiting.
        held = [each for each in unsent if each[1]]
        if held:
            deps.durability.hold(held, store.end_log_offset)

    def _refuse(self, unsent: list[Held], error: StoreError) -> None:
        for connection, answers, send_count in unsent:
            self._deps.stats.put_failures += send_count
            connection.send_deferred(with_outcome(answers, error))

    def close(self) -> None:
        """Write what is not written yet, and serve nothing any more."""
        if self._is_broken:
            return
        self.commit_sends()
        self._collect()
        self._is_broken = True
        self._kernel_memory.revoke()

    def _disable(self) -> None:
        self._is_broken = True
        unsent, self._unsent = self._unsent, []
        self._kernel_memory.revoke()
        self._refuse(unsent, StoreError("the kernel's feed failed"))

    # -- permission -------------------------------------------------------------------------------

    def _send_budget(self, now_ms: int) -> int:
        """How many sends may be served now."""
        deps = self._deps
        config = deps.settings.config
        if config is not self._config:
            self._configure(config)
        topics, groups, consumers = self._versions
        if (
            deps.topics.data_version is not topics
            or deps.groups.data_version is not groups
            or deps.consumers.version != consumers
        ):
            self._forget_changed()
        if not self._may_store or now_ms < config.start_accept_send_request_time_stamp:
            return 0
        if deps.store.refusal is not None:
            return 0
        # Reading the clock costs as much as the rest of this method.
        steady_ms = deps.steady() if deps.gate.was_slow else 0
        return deps.gate.capacity(config, steady_ms, deps.durability.waiting_count)

    def _configure(self, config: BrokerConfig) -> None:
        deps, store = self._deps, self._deps.store
        before, self._config = self._config, config
        if before is not None and before.slave_read_enable != config.slave_read_enable:
            self._revoke_pulls()  # they suggest other brokers now
        self._may_store = bool(config.broker_permission & PERM_WRITE) and not config.is_slave
        self._may_read = (
            self._serves_readers
            and bool(config.broker_permission & PERM_READ)
            and not config.reject_pull_consumer_enable
            and read_redirect.serves_readers(config)
        )
        self._waits = deps.durability.may_wait
        self._feed.set_hot_bytes(disk_prefetch.HOT_BYTES)
        self._feed.configure(
            frame_max=self._frame_max_bytes,
            body_max=config.max_message_size,
            batch_max=BATCH_MESSAGES_MAX,
            batch_keys_max=BATCH_KEYS_MAX,
            index_on=config.message_index_enable,
            waits=self._waits,
            store_host=host.pack(deps.store_host),
            id_prefix=deps.id_prefix,
            cluster=config.broker_cluster_name,
            special_names=sorted(SPECIAL_PROPERTIES),
            region=config.region_id,
            trace_on=config.trace_on,
            version=CURRENT_VERSION,
            pull_on=self._may_read,
            lite_pull_on=config.lite_pull_message_enable,
            pull_count=config.pull_batch_max_message_count,
            read_count=config.max_transfer_count_on_message_in_memory,
            read_bytes=config.max_transfer_bytes_on_message_in_memory,
            memory_bytes=store.memory_bytes,
            checked_from=store.checked_from,
        )

    def _forget_changed(self) -> None:
        """Tables have changed: forget changed entries; the feed learns them again from handlers."""
        topics, groups, consumers = self._deps.topics, self._deps.groups, self._deps.consumers
        seen_topics, seen_groups, _ = self._versions
        self._versions = (topics.data_version, groups.data_version, consumers.version)
        if topics.data_version is not seen_topics:
            changed = [name for name, known in self._known.items() if topics.get(name) is not known]
            if changed:
                self._collect()
            for name in changed:
                del self._known[name]
                self._feed.drop_topic(name)
        if topics.data_version is not seen_topics or groups.data_version is not seen_groups:
            self._revoke_pulls()
        stale = [
            (topic, group)
            for (topic, group), subscription in self._registered.items()
            if not self._is_registered(group, subscription)
        ]
        if stale:
            self._collect()
        for granted in stale:
            del self._registered[granted]
            self._inline.discard(granted)
            self._feed.revoke_pulls(*granted)

    def _revoke_pulls(self) -> None:
        self._collect()
        self._feed.revoke_all_pulls()
        self._inline.clear()
        self._registered.clear()

    def serve_readers(self, *, serves_readers: bool) -> None:
        """Leave all pulls to the handlers, which refuse them, or serve them again."""
        if self._is_broken or serves_readers == self._serves_readers:
            return
        self.commit_sends()
        self._serves_readers = serves_readers
        self._revoke_pulls()
        self._config = None  # configured again in the next loop iteration

    def forget_all(self) -> None:
        """Forget all topics and grants, as rules have changed; the feed learns them again."""
        if self._is_broken:
            return
        self.commit_sends()
        self._revoke_pulls()
        for name in self._known:
            self._feed.drop_topic(name)
        self._known.clear()

    # -- topics -----------------------------------------------------------------------------------

    def _admit(self, name: str) -> bool:
        """Whether sends to a topic can be ordinary; then the feed knows the topic."""
        if not self._is_free_topic(name):
            return False
        topic = self._announce_topic(name)
        return topic is not None and _is_writable(name, topic)

    def _announce_topic(self, name: str) -> TopicConfig | None:
        """Announce a topic to the feed; None if it does not exist."""
        topic = self._known.get(name)
        if topic is None:
            topic = self._deps.topics.get(name)
            if topic is None:
                return None
            self._known[name] = topic
            queue_count = max(topic.write_queue_count, topic.read_queue_count)
            self._feed.put_topic(
                name,
                queue_count if _is_writable(name, topic) else 0,
                topic.read_queue_count if topic.perm & PERM_READ else 0,
                topic.filter_type == MULTI_TAG,
            )
        return topic

    # -- pulls ------------------------------------------------------------------------------------

    def pull_found(
        self, header: PullMessageRequest, subscription: Subscription, next_offset: int
    ) -> None:
        """The handlers have answered a pull: the feed may serve the next one like it."""
        if self._is_broken or not self._may_read or not subscription.is_by_tags:
            return
        topic, group = granted = (header.topic, header.consumer_group)
        if self._deps.offsets.is_reset(group, topic):
            return  # the handlers have to notify clients of the group of the reset
        queue = self._deps.store.queues.get(topic, header.queue_id)
        if queue is None:
            return
        if not self._is_free_topic(topic) or self._announce_topic(topic) is None:
            return
        if header.sys_flag & HAS_SUBSCRIPTION:
            if granted not in self._inline:
                self._inline.add(granted)
                self._feed.grant_pulls(topic, group, None, None, self._brokers_of(group))
        elif self._registered.get(granted) is not subscription:
            if not self._is_registered(group, subscription):
                return  # a pull that was parked under an older one
            self._registered[granted] = subscription
            tags = subscription.tags
            codes = None if tags.selects_all else list(tags.codes)
            self._feed.grant_pulls(
                topic, group, subscription.version, codes, self._brokers_of(group)
            )
        self._kernel_memory.grant_reading(queue, next_offset)
        self._feed.note_pull(topic, group, header.queue_id, next_offset)

    def _brokers_of(self, group: str) -> tuple[int, int]:
        """The broker ids to suggest to readers: usually, and to those that are far behind."""
        known = self._deps.groups.get(group) or SubscriptionGroupConfig(group_name=group)
        return read_redirect.suggested_brokers(self._deps.settings.config, known)

    def _is_registered(self, group: str, subscription: Subscription) -> bool:
        """Whether heartbeats of the group have this subscription, and it is not broadcasting."""
        members = self._deps.consumers.get(group)
        return (
            members is not None
            and not members.is_broadcasting
            and members.subscriptions.get(subscription.topic) is subscription
        )

    # -- statistics -------------------------------------------------------------------------------

    def _collect(self) -> None:
        stats = self._deps.stats
        stats.stored_many(self._feed.drain_stored())
        for topic, group, queue_id, done, next_offset in self._feed.drain_delivered():
            stats.delivered_by(topic, group, queue_id, *done)
            self._deps.offsets.note_pull(group, topic, queue_id, next_offset)


def _is_writable(name: str, topic: TopicConfig) -> bool:
    return (
        bool(topic.perm & PERM_WRITE)
        and name.isascii()
        and len(name) <= _TOPIC_LENGTH_MAX
        and not is_system_topic(name)
        and name not in UNSENDABLE_TOPICS
        and not name.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))
    )


@lru_cache(maxsize=65_536)
def packed_host(peer: str) -> bytes:
    """The address of a connection as records store it; empty if it has none, and then the feed
    stores nothing."""
    try:
        return host.pack(born_host(peer))
    except TianzhouError:
        return b""
