"""Builds the features of a broker and the dependencies of its handlers, all by keyword.

`Core` is what exists once the broker listens; `assemble` builds everything on top of it. Each
feature that has something to stop is registered on the exit stack right after it is built.
"""

import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from tianzhou.broker import advertised_address
from tianzhou.broker.acl.control import AccessControl
from tianzhou.broker.acl.message_topics import topic_at
from tianzhou.broker.acl.rights import Rights
from tianzhou.broker.background.arrivals import Arrivals
from tianzhou.broker.background.crash_points import CrashPoint
from tianzhou.broker.cluster.registration import Registrar
from tianzhou.broker.config import BrokerConfig, BrokerRole, inner_credentials
from tianzhou.broker.handlers import heartbeat, pop, pull, queue_locks
from tianzhou.broker.handlers.deps import Deps, WaitingPull
from tianzhou.broker.longpoll.parked_pops import ParkedPops
from tianzhou.broker.longpoll.parked_pulls import ParkedPulls
from tianzhou.broker.longpoll.waker import Waker
from tianzhou.broker.pop.reviver import Pops
from tianzhou.broker.quota.control import Quotas
from tianzhou.broker.replication.failover import Failover
from tianzhou.broker.replication.service import Replication
from tianzhou.broker.requests.fast_path import FastPath
from tianzhou.broker.requests.pipeline import RequestPipeline
from tianzhou.broker.requests.table import handle
from tianzhou.broker.scheduled.service import ScheduledMessages
from tianzhou.broker.state import BrokerState
from tianzhou.broker.storing.durability import Durability
from tianzhou.broker.storing.overload import SendGate
from tianzhou.broker.storing.redirects import MessageWriter
from tianzhou.broker.storing.serving import Serving
from tianzhou.broker.transactions.check_loop import CheckLoop
from tianzhou.broker.transactions.check_sender import send_check
from tianzhou.broker.transactions.halves import Halves
from tianzhou.clock import Clock
from tianzhou.config.live import LiveSettings
from tianzhou.errors import RemotingError
from tianzhou.protocol import kernel
from tianzhou.protocol.records.message_id import encode_offset_id
from tianzhou.remoting.address import format_address
from tianzhou.remoting.client import Client
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.http import WebServer
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.scheduler import FairQueue
from tianzhou.remoting.tls.contexts import Tls, TlsMode
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
    parked: ParkedPulls[Connection, WaitingPull]
    arrivals: Arrivals
    store: MessageStore
    durability: Durability
    serving: Serving
    access: AccessControl | None
    quotas: Quotas | None
    pipeline: RequestPipeline
    limits: Limits
    port_tls: Callable[[], ssl.SSLContext | None]
    """TLS of the ports, for connections to come."""
    client_tls: Tls | None
    host: str
    """The advertised one."""
    port: int
    change_role: Callable[[BrokerRole, int], Awaitable[None]]
    failover: Failover | None = None
    """None with fixed roles."""
    may_register: Callable[[], bool] = lambda: True

    @property
    def address(self) -> str:
        """The address that clients connect to."""
        return format_address(self.host, self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What runs, and is stopped, besides the core."""

    deps: Deps
    pipeline: RequestPipeline
    registrar: Registrar
    replication: Replication
    checks: CheckLoop
    waker: Waker[Connection, WaitingPull]

    def answer_parked(self) -> None:
        """Answer every parked request, and forget the connections: the broker stops."""
        # No client is to be notified that others of its group have gone.
        self.pipeline.connections_end()
        self.waker.close()
        self.deps.polls.close()

    def wake_overdue(self) -> None:
        """Wake the pulls of queues that hold messages for them, in case a wake-up was missed."""
        max_offset = self.deps.store.max_offset
        self.waker.wake(self.deps.parked.overdue_queues(lambda key: max_offset(*key)))

    def close_silent(self) -> None:
        """Close connections that send no heartbeats, and drop queue locks that have expired."""
        heartbeat.close_silent(self.deps)
        queue_locks.remove_expired(self.deps)

    def clock_moved(self) -> None:
        """Check all deadlines again."""
        self.waker.expire_due()
        self.deps.pops.clock_changed()
        self.deps.polls.expire_due()
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


def assemble(core: Core, scheduled: ScheduledMessages, stops: AsyncExitStack) -> Features:
    """Build the features and open the pipeline for requests. Raises StoreError, ConfigError."""
    settings, state, store, clock, steady = (
        core.settings, core.state, core.store, core.clock, core.steady,
    )  # fmt: skip
    config, pipeline = settings.config, core.pipeline
    store_host = (advertised_address.resolve(core.host), core.port)
    # Both call handlers with `deps`, which exists before either is called.
    polls = ParkedPops(steady, lambda parked, is_due: pop.serve_waiting(deps, parked, is_due))
    waker = Waker(
        core.parked, steady, lambda parked, is_due: pull.serve_waiting(deps, parked, is_due),
        lambda: settings.config.long_polling_enable,
    )  # fmt: skip
    pops = Pops(
        settings=settings, store=store, durability=core.durability, topics=state.topics,
        groups=state.groups, offsets=state.offsets, stats=state.stats, clock=clock, steady=steady,
        store_host=store_host, topics_saved=state.save, on_visible=polls.visible,
        crash_point=core.crash_point, timed_until_ms=scheduled.timed_until_ms,
        on_space=polls.visible_everywhere,
    )  # fmt: skip
    stops.push_async_callback(pops.stop)
    client = Client(tls=core.client_tls, credentials=inner_credentials(config))
    stops.push_async_callback(client.close)
    replication = Replication(
        settings=settings, store=store, state=state, scheduled=scheduled,
        durability=core.durability, client=client, clock=clock, host=core.host, port=core.port,
        limits=core.limits, port_tls=core.port_tls, failover=core.failover,
        is_secured=core.access is not None or config.tls_mode is TlsMode.ENFORCING,
    )  # fmt: skip
    writer = MessageWriter(store)
    halves = Halves(
        settings=settings, store=store, durability=core.durability, writer=writer,
        offsets=state.offsets, clock=clock, steady=steady, store_host=store_host,
    )  # fmt: skip
    checks = CheckLoop(
        halves, state.topics,
        partial(
            send_check, producers=state.producers, broker_name=config.broker_name,
            store_host=store_host, may_check=pipeline.may_publish,
        ),
    )  # fmt: skip
    stops.push_async_callback(checks.stop)
    # A half cannot be delayed as well, so the redirect of halves comes first.
    writer.add_redirect(halves.redirect)
    writer.add_redirect(scheduled.redirect)
    send_backs = FairQueue(scheduled.budget)
    stops.callback(send_backs.close)

    def on_settings(before: BrokerConfig, after: BrokerConfig) -> None:
        store.apply_config(after)
        state.apply_config(before, after)
        if core.failover is not None and after.etcd_access != before.etcd_access:
            core.failover.use_access(after.etcd_access)

    def on_reset(topic: str, queue_ids: Iterable[int]) -> None:
        """Have clients of the group learn the new offsets: by their next pull, and parked ones now.

        Parked pulls of other groups are woken, too, and stay parked.
        """
        pipeline.forget_fast_path()
        waker.wake((topic, queue_id) for queue_id in queue_ids)

    deps = Deps(
        settings=settings, clock=clock, steady=steady, crash_point=core.crash_point,
        address=core.address, store_host=store_host,
        id_prefix=encode_offset_id(store_host, 0)[:-_LOG_OFFSET_DIGITS],
        topics=state.topics, groups=state.groups, offsets=state.offsets, modes=state.modes,
        consumers=state.consumers, producers=state.producers, client_ids=state.client_ids,
        limits=state.limits, stats=state.stats, history=state.history, saved=state.save,
        store=store, writer=writer, gate=SendGate(), scheduled=scheduled, halves=halves, pops=pops,
        durability=core.durability, send_backs=send_backs, client=client, parked=core.parked,
        polls=polls, arm=waker.arm,
        may_consume=pipeline.may_consume, on_messages=pipeline.pull_answered, on_reset=on_reset,
        replication=replication, replication_status=replication.status, failover=core.failover,
        change_role=core.change_role, has_master=lambda: replication.is_following,
        has_offsets=lambda: replication.has_offsets,
        on_settings=on_settings, acl_files=core.access.files if core.access else None,
    )  # fmt: skip
    registrar = Registrar(
        settings, state.topics, client, state.topics.mark_ordered,
        address=core.address, ha_address=lambda: replication.advertised_address,
        on_master=replication.note_master, lacks_master=replication.lacks_master,
        may_register=core.may_register,
        on_ignored=core.failover.registration_ignored if core.failover else None,
    )  # fmt: skip
    state.on_topics_changed = registrar.topics_changed
    replication.on_master_lost = registrar.master_lost
    stops.callback(core.arrivals.clear)
    if not config.is_slave:
        scheduled.subscribe(core.arrivals)
    polls.subscribe(core.arrivals)
    waker.subscribe(core.arrivals)
    pipeline.open(
        partial(handle, deps),
        _fast_path(core, deps),
        on_closed=(
            core.parked.remove_owner,
            polls.connection_closed,
            partial(heartbeat.connection_closed, deps),
        ),
    )
    return Features(
        deps=deps, pipeline=pipeline, registrar=registrar, replication=replication, checks=checks,
        waker=waker,
    )  # fmt: skip


def _fast_path(core: Core, deps: Deps) -> FastPath | None:
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
        feed, deps, core.limits.frame_bytes, core.pipeline.is_free_topic,
        lambda: len(deps.polls) > 0,
    )  # fmt: skip


async def serve_metrics(core: Core, features: Features, stops: AsyncExitStack) -> int:
    """Serve /metrics and the pages of health; returns the port. Raises RemotingError."""
    # Imported here: the library takes memory that a broker without these pages need not spend.
    from tianzhou.broker.metrics import prometheus
    from tianzhou.broker.metrics.health import health_pages

    quotas, access = core.quotas, core.access
    pages = prometheus.pages(
        features.deps,
        lambda: {
            "quota": quotas.refused if quotas else {},
            "table": core.state.limits.refused,
            "acl": access.refused if access else {},
        },
    )
    web = WebServer(pages, query_pages=health_pages(features.deps))
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
