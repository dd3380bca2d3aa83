"""Builds the features of a broker and the dependencies of its handlers, all by keyword.

`Core` is what exists once the broker listens; `assemble` builds everything on top of it. Each
feature that has something to stop is registered on the exit stack right after it is built.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from tianzhou.broker import advertised_address
from tianzhou.broker.acl.control import AccessControl
from tianzhou.broker.acl.message_topics import topic_at
from tianzhou.broker.acl.rights import Rights
from tianzhou.broker.background.arrivals import Arrivals
from tianzhou.broker.background.crash_points import CrashPoint
from tianzhou.broker.background.fair_queue import FairQueue
from tianzhou.broker.cluster.registration import Registrar
from tianzhou.broker.config import BrokerConfig, inner_credentials
from tianzhou.broker.handlers import heartbeat, pop, pull, queue_locks
from tianzhou.broker.handlers.admin.acl import AclDeps
from tianzhou.broker.handlers.admin.broker import BrokerDeps, runtime_info
from tianzhou.broker.handlers.admin.cold_reads import ColdDeps
from tianzhou.broker.handlers.admin.groups import GroupDeps
from tianzhou.broker.handlers.admin.statistics import StatsDeps
from tianzhou.broker.handlers.admin.store import StoreDeps
from tianzhou.broker.handlers.admin.topics import TopicDeps
from tianzhou.broker.handlers.assignment import AssignmentDeps
from tianzhou.broker.handlers.client_calls import RelayDeps
from tianzhou.broker.handlers.heartbeat import ClientDeps
from tianzhou.broker.handlers.offsets import OffsetDeps
from tianzhou.broker.handlers.pop import PopDeps
from tianzhou.broker.handlers.pull import PullDeps, Waiting
from tianzhou.broker.handlers.query import QueryDeps
from tianzhou.broker.handlers.queue_locks import LockDeps
from tianzhou.broker.handlers.recall import RecallDeps
from tianzhou.broker.handlers.reply import ReplyDeps
from tianzhou.broker.handlers.send import SendDeps
from tianzhou.broker.handlers.send_back import SendBackDeps
from tianzhou.broker.handlers.transaction import TransactionDeps
from tianzhou.broker.longpoll.parked_pops import ParkedPops, PopParked
from tianzhou.broker.longpoll.parked_pulls import Parked, ParkedPulls
from tianzhou.broker.longpoll.pull_waker import PullWaker
from tianzhou.broker.pop.reviver import Pops
from tianzhou.broker.quota.control import Quotas
from tianzhou.broker.requests.fast_path import FastPath
from tianzhou.broker.requests.pipeline import RequestPipeline
from tianzhou.broker.requests.table import HandlerDeps, HandlerTable
from tianzhou.broker.scheduled.service import ScheduledMessages
from tianzhou.broker.state import BrokerState
from tianzhou.broker.storing.durability import Durability
from tianzhou.broker.storing.overload import SendGate
from tianzhou.broker.storing.redirects import MessageWriter
from tianzhou.broker.tables.queue_locks import QueueLocks
from tianzhou.broker.transactions.check_loop import CheckLoop
from tianzhou.broker.transactions.check_sender import CheckSender
from tianzhou.broker.transactions.halves import Halves
from tianzhou.clock import Clock
from tianzhou.config.live import LiveSettings
from tianzhou.errors import RemotingError
from tianzhou.message import Host
from tianzhou.protocol import kernel
from tianzhou.protocol.records.message_id import encode_offset_id
from tianzhou.remoting.address import format_address
from tianzhou.remoting.client import Client
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.http import WebServer
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.tls.contexts import Tls
from tianzhou.store.message_store import MessageStore

log = logging.getLogger(__name__)

_LOG_OFFSET_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """What the features of a broker are built on."""

    settings: LiveSettings[BrokerConfig]
    clock: Clock
    steady: Clock
    crash_point: CrashPoint
    state: BrokerState
    parked: ParkedPulls[Connection, Waiting]
    arrivals: Arrivals
    store: MessageStore
    scheduled: ScheduledMessages
    access: AccessControl | None
    quotas: Quotas | None
    pipeline: RequestPipeline
    limits: Limits
    client_tls: Tls | None
    host: str
    """The advertised one."""
    port: int

    @property
    def address(self) -> str:
        """The address that clients connect to."""
        return format_address(self.host, self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What runs, and is stopped, besides the core."""

    pipeline: RequestPipeline
    table: HandlerTable
    registrar: Registrar
    client: Client
    checks: CheckLoop
    pops: Pops
    polls: ParkedPops
    waker: PullWaker[Connection, Waiting]
    pulls: PullDeps
    clients: ClientDeps
    locks: LockDeps
    runtime: Callable[[], dict[str, str]]

    def answer_parked(self) -> None:
        """Answer every parked request, and forget the connections: the broker stops."""
        # No client is to be notified that others of its group have gone.
        self.pipeline.connections_end()
        pull.answer_all(self.pulls)
        self.polls.close()
        self.waker.cancel()

    def wake_overdue(self) -> None:
        """Wake the pulls of queues that hold messages for them, in case a wake-up was missed."""
        max_offset = self.pulls.store.max_offset
        self.waker.wake(self.pulls.parked.overdue_queues(lambda key: max_offset(*key)))

    def close_silent(self) -> None:
        """Close connections that send no heartbeats, and drop queue locks that have expired."""
        heartbeat.close_silent(self.clients)
        queue_locks.remove_expired(self.locks)

    def clock_moved(self) -> None:
        """Check all deadlines again."""
        self.waker.expire_due()
        self.pops.clock_changed()
        self.polls.expire_due()
        self.checks.clock_changed()


def access_control(
    config: BrokerConfig, store: MessageStore, state: BrokerState, clock: Clock
) -> AccessControl | None:
    """The accounts of the files in `rocketmqHome`; None if aclEnable is false.

    Raises ConfigError.
    """
    if not config.acl_enable:
        return None
    home = config.rocketmq_home
    return AccessControl(
        file=home / config.acl_file,
        folder=home / config.acl_folder,
        topic_at=lambda log_offset: topic_at(store, log_offset),
        clock=clock,
        rights=Rights(
            lambda topic: state.topics.get(topic) is not None,
            lambda group: state.groups.get(group) is not None,
            config.msg_trace_topic_name,
        ),
    )


def assemble(core: Core, stops: AsyncExitStack) -> Features:
    """Build the features and open the pipeline for requests. Raises StoreError, ConfigError."""
    settings, state, store, clock, steady = (
        core.settings, core.state, core.store, core.clock, core.steady,
    )  # fmt: skip
    config, pipeline, scheduled = settings.config, core.pipeline, core.scheduled
    store_host = (advertised_address.resolve(core.host), core.port)
    durability = Durability(
        store, config.flush_disk_type, config.broker_role, config.sync_flush_timeout
    )
    pops = _pop_deps(core, store_host)
    stops.push_async_callback(pops.pops.stop)
    client = Client(tls=core.client_tls, credentials=inner_credentials(config))
    stops.push_async_callback(client.close)
    writer = MessageWriter(store)
    halves = Halves(
        settings=settings, store=store, writer=writer, offsets=state.offsets, clock=clock,
        steady=steady, store_host=store_host,
    )  # fmt: skip
    checks = CheckLoop(
        halves, settings, store, state.topics, steady, store_host,
        CheckSender(state.producers, config.broker_name, store_host, pipeline.may_publish),
    )  # fmt: skip
    stops.push_async_callback(checks.stop)
    # A half cannot be delayed as well, so the redirect of halves comes first.
    writer.add_redirect(halves.redirect)
    writer.add_redirect(scheduled.redirect)
    fair_queue = FairQueue(scheduled.slices)
    stops.callback(fair_queue.close)

    locks = LockDeps(
        settings=settings, topics=state.topics, groups=state.groups, limits=state.limits,
        locks=QueueLocks(), strays=QueueLocks(), steady=steady,
    )  # fmt: skip

    # The two need each other; neither calls the other before both exist.
    def serve(parked: Parked[Connection, Waiting]) -> None:
        pull.wake(pulls, parked)

    waker = PullWaker[Connection, Waiting](
        core.parked, steady, serve, lambda now_ms: pull.answer_due(pulls, now_ms)
    )
    pulls = PullDeps(
        settings=settings, topics=state.topics, groups=state.groups, consumers=state.consumers,
        offsets=state.offsets, store=store, parked=core.parked, stats=state.stats, steady=steady,
        arm=waker.arm, on_messages=pipeline.pull_answered, may_consume=pipeline.may_consume,
    )  # fmt: skip
    clients = ClientDeps(
        settings=settings, topics=state.topics, groups=state.groups, consumers=state.consumers,
        producers=state.producers, client_ids=state.client_ids, limits=state.limits, clock=clock,
        steady=steady,
    )  # fmt: skip
    send = SendDeps(
        settings=settings, topics=state.topics, store=store, writer=writer, durability=durability,
        gate=SendGate(), stats=state.stats, clock=clock, steady=steady, store_host=store_host,
        id_prefix=encode_offset_id(store_host, 0)[:-_LOG_OFFSET_DIGITS],
        topics_saved=state.save, groups=state.groups,
        is_ordered=lambda group: queue_locks.is_locked(locks, group), crash_point=core.crash_point,
    )  # fmt: skip

    def on_settings(before: BrokerConfig, after: BrokerConfig) -> None:
        store.adopt(after)
        state.adopt(before, after)

    def on_reset(topic: str, queue_ids: Iterable[int]) -> None:
        """Have clients of the group learn the new offsets: by their next pull, and parked ones now.

        Parked pulls of other groups are woken, too, and stay parked.
        """
        pipeline.forget_fast_path()
        waker.wake((topic, queue_id) for queue_id in queue_ids)

    broker = BrokerDeps(
        settings=settings, settings_lock=asyncio.Lock(), started_ms=state.stats.started_ms,
        store=store, durability=durability, stats=state.stats, history=state.history,
        parked_count=lambda: len(core.parked), waiting=scheduled.runtime_info, clock=clock,
        has_accounts=core.access is not None, on_settings=on_settings,
    )  # fmt: skip
    table = HandlerTable(
        HandlerDeps(
            send=send,
            pull=pulls,
            offsets=OffsetDeps(
                settings=settings, topics=state.topics, groups=state.groups, offsets=state.offsets,
                store=store, consumers=state.consumers, limits=state.limits, saved=state.save,
            ),
            clients=clients,
            query=QueryDeps(store=store),
            topics=TopicDeps(
                settings=settings, topics=state.topics, consumers=state.consumers,
                offsets=state.offsets, store=store, history=state.history, clock=clock,
                address=core.address, saved=state.save,
            ),
            groups=GroupDeps(
                settings=settings, topics=state.topics, groups=state.groups,
                consumers=state.consumers, offsets=state.offsets, history=state.history,
                clock=clock, saved=state.save,
            ),
            cold=ColdDeps(store=store),
            acl=AclDeps(
                settings=settings, files=core.access.files if core.access else None,
                lock=asyncio.Lock(), address=core.address,
            ),
            broker=broker,
            stats=StatsDeps(
                settings=settings, topics=state.topics, groups=state.groups,
                consumers=state.consumers, offsets=state.offsets, store=store,
                history=state.history, clock=clock, address=core.address, stats=state.stats,
                pops=pops.pops.table,
            ),
            store=StoreDeps(
                topics=state.topics, consumers=state.consumers, store=store, history=state.history,
                clock=clock, delay_offsets=scheduled.delays.as_file,
                timer_checkpoint=scheduled.timer_checkpoint,
            ),
            locks=locks,
            transactions=TransactionDeps(
                settings=settings, halves=halves, store=store, durability=durability,
                stats=state.stats, steady=steady, topics=state.topics, topics_saved=state.save,
            ),
            reply=ReplyDeps(settings=settings, producers=state.producers, send=send, clock=clock),
            relay=RelayDeps(
                settings=settings, topics=state.topics, groups=state.groups,
                consumers=state.consumers, offsets=state.offsets, store=store, on_reset=on_reset,
            ),
            send_back=SendBackDeps(
                settings=settings, topics=state.topics, groups=state.groups, store=store,
                writer=writer, durability=durability, stats=state.stats, store_host=store_host,
                topics_saved=state.save, fair_queue=fair_queue, crash_point=core.crash_point,
            ),
            recall=RecallDeps(
                settings=settings, topics=state.topics, writer=writer, durability=durability,
                clock=clock, store_host=store_host,
            ),
            pop=pops,
            assignment=AssignmentDeps(
                settings=settings, topics=state.topics, groups=state.groups,
                consumers=state.consumers, modes=state.modes, limits=state.limits, client=client,
                steady=steady, saved=state.save,
            ),
        )
    )  # fmt: skip
    registrar = Registrar(
        settings, state.topics, client, state.topics.mark_ordered,
        address=core.address,
        ha_address=format_address(config.broker_ip2 or core.host, config.ha_port),
    )  # fmt: skip
    state.on_topics_changed = registrar.topics_changed
    scheduled.subscribe(core.arrivals)
    pops.polls.subscribe(core.arrivals)
    waker.subscribe(core.arrivals, lambda: settings.config.long_polling_enable)
    pipeline.open(
        table,
        _fast_path(core, send, pulls, pops.polls),
        on_closed=(
            core.parked.remove_owner,
            pops.polls.connection_closed,
            partial(heartbeat.connection_closed, clients),
        ),
    )
    return Features(
        pipeline=pipeline, table=table, registrar=registrar, client=client, checks=checks,
        pops=pops.pops, polls=pops.polls, waker=waker, pulls=pulls, clients=clients, locks=locks,
        runtime=partial(runtime_info, broker),
    )  # fmt: skip


def _pop_deps(core: Core, store_host: Host) -> PopDeps:
    """Pop consumption: in-flight messages and parked requests, which wake each other."""
    state = core.state

    def serve(parked: PopParked, is_due: bool) -> bool:
        return pop.serve_waiting(deps, parked, is_due)

    polls = ParkedPops(core.steady, serve)
    pops = Pops(
        settings=core.settings, store=core.store, topics=state.topics, groups=state.groups,
        offsets=state.offsets, stats=state.stats, clock=core.clock, steady=core.steady,
        store_host=store_host, topics_saved=state.save, on_visible=polls.visible,
        crash_point=core.crash_point, timed_until_ms=core.scheduled.timed_until_ms,
        on_space=polls.visible_everywhere,
    )  # fmt: skip
    deps = PopDeps(
        settings=core.settings, topics=state.topics, groups=state.groups, store=core.store,
        pops=pops, polls=polls, stats=state.stats, limits=state.limits, clock=core.clock,
        steady=core.steady, may_consume=core.pipeline.may_consume,
    )  # fmt: skip
    return deps


def _fast_path(core: Core, send: SendDeps, pulls: PullDeps, polls: ParkedPops) -> FastPath | None:
    """The kernel's fast path, where it can do what the handlers do.

    Access control is checked before the handlers, so the fast path would bypass it. It writes
    neither into a staging pool nor units of an extended consume queue.
    """
    config = core.settings.config
    if core.access is not None or config.is_staged or config.enable_consume_queue_ext:
        return None
    feed = kernel.new_feed()
    if feed is None:
        return None
    return FastPath(
        feed, send, pulls, core.limits.frame_bytes, core.pipeline.is_free_topic,
        lambda: len(polls) > 0,
    )  # fmt: skip


async def serve_metrics(core: Core, features: Features, stops: AsyncExitStack) -> int:
    """Serve /metrics and /health; returns the port. Raises RemotingError."""
    # Imported here: the library takes memory that a broker without these pages need not spend.
    from tianzhou.broker.metrics import prometheus
    from tianzhou.broker.metrics.backlog import BacklogDeps
    from tianzhou.broker.metrics.legacy_exporter import ExporterDeps

    state, store, quotas, access = core.state, core.store, core.quotas, core.access
    pages = prometheus.pages(
        prometheus.MetricDeps(
            settings=core.settings, topics=state.topics, groups=state.groups, offsets=state.offsets,
            consumers=state.consumers, producers=state.producers, store=store, stats=state.stats,
            parked_count=lambda: len(core.parked),
            quota_refusals=lambda: quotas.refused if quotas else {},
            table_refusals=state.limits.refused,
            acl_refusals=lambda: access.refused if access else {},
            waiting=BacklogDeps(
                store=store, stats=state.stats, open_halves=features.checks.halves.open_count,
                timer=core.scheduled.timer_stats, pops=features.pops.table,
            ),
            exporter=ExporterDeps(
                settings=core.settings, address=core.address, topics=state.topics,
                offsets=state.offsets, consumers=state.consumers, producers=state.producers,
                store=store, history=state.history, runtime=features.runtime, clock=core.clock,
            ),
        )
    )  # fmt: skip
    web = WebServer(pages)
    stops.push_async_callback(web.close)
    config = core.settings.config
    host = config.metrics_prom_exporter_host or config.bind_address
    try:
        port = await web.listen(host, config.metrics_prom_exporter_port)
    except RemotingError as e:
        raise RemotingError(
            f"/metrics cannot be served (metricsPromExporterHost, metricsPromExporterPort): {e}"
        ) from e
    log.info("serving /metrics and /health on port %d", port)
    return port
