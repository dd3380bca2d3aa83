"""The broker as a program: its parts, and the order in which they start and stop.

Start: the tables, the store (which recovers itself), the ports, the nameservers. A broker is
announced last, when it can already be used. Stop, in reverse: the nameservers are told first, so
that clients turn elsewhere, waiting pulls are answered, answers under way leave, and only then are
the tables saved and the store closed.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tianzhou.broker import advertised_address, disk_space_check
from tianzhou.broker.acl.control import LOOK_S, AccessControl
from tianzhou.broker.acl.places import place_at
from tianzhou.broker.acl.rights import Rights
from tianzhou.broker.background.crash_points import CrashPoint, no_crash_point
from tianzhou.broker.background.fair_queue import FairQueue
from tianzhou.broker.cluster import copy_metadata
from tianzhou.broker.cluster.registration import Registrar
from tianzhou.broker.config import (
    BrokerConfig,
    MetricsExporter,
    inner_credentials,
    namesrv_addresses,
)
from tianzhou.broker.handlers import heartbeat, pop, pull
from tianzhou.broker.handlers import queue_locks as locks
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
from tianzhou.broker.handlers.pull import PullDeps, Waiting
from tianzhou.broker.handlers.query import QueryDeps
from tianzhou.broker.handlers.queue_locks import LockDeps
from tianzhou.broker.handlers.recall import RecallDeps
from tianzhou.broker.handlers.reply import ReplyDeps
from tianzhou.broker.handlers.send import SendDeps
from tianzhou.broker.handlers.send_back import SendBackDeps
from tianzhou.broker.handlers.transaction import TransactionDeps
from tianzhou.broker.longpoll.parked_pops import ParkedPops
from tianzhou.broker.longpoll.parked_pulls import Parked, ParkedPulls
from tianzhou.broker.longpoll.pull_waker import PullWaker
from tianzhou.broker.pop.reviver import Pops
from tianzhou.broker.quota import control as quota
from tianzhou.broker.quota.rules import Rules as QuotaRules
from tianzhou.broker.requests.dispatch import Answer, HandlerTable
from tianzhou.broker.requests.fast_path import FastPath
from tianzhou.broker.requests.pipeline import RequestPipeline
from tianzhou.broker.requests.table import HandlerDeps, handlers_of
from tianzhou.broker.scheduled.service import TOPICS as WAITING_TOPICS
from tianzhou.broker.scheduled.service import ScheduledMessages
from tianzhou.broker.statistics.counters import Stats, channel_activity
from tianzhou.broker.statistics.history import History
from tianzhou.broker.storing.durability import Durability
from tianzhou.broker.storing.overload import SendGate
from tianzhou.broker.storing.redirects import MessageWriter
from tianzhou.broker.tables.assignment import ModeTable
from tianzhou.broker.tables.clients import ClientIds, ConsumerTable, ProducerTable, Subscription
from tianzhou.broker.tables.groups import GroupTable
from tianzhou.broker.tables.offsets import OffsetTable
from tianzhou.broker.tables.queue_locks import QueueLocks
from tianzhou.broker.tables.saver import (
    TableSaver,
    encode_table_steps,
    encode_text,
    load_table,
    table_paths,
)
from tianzhou.broker.tables.topics import TopicTable, system_topics
from tianzhou.broker.transactions.check_loop import CheckLoop
from tianzhou.broker.transactions.check_sender import CheckSender
from tianzhou.broker.transactions.halves import Halves
from tianzhou.clock import Clock, steady_ms, wall_ms
from tianzhou.config.live import LiveSettings
from tianzhou.errors import RemotingError, RequestError, StoreCorrupt
from tianzhou.protocol import kernel
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.filter.sql import prepare as prepare_sql
from tianzhou.protocol.headers.pull import PullMessageRequest
from tianzhou.protocol.records.message_id import encode_offset_id
from tianzhou.remoting.address import format_address, parse_addresses
from tianzhou.remoting.client import Client
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.http import WebServer
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.quota.tables import TableLimits
from tianzhou.remoting.server import Server
from tianzhou.remoting.slices import Steps, one_step
from tianzhou.remoting.tls.renewal import Renewal
from tianzhou.remoting.tls.settings import client_tls_of, tls_files_of, tls_of
from tianzhou.store.message_store import MessageStore

log = logging.getLogger(__name__)

_SWEEP_S = 5.0
_SILENT_CLIENTS_S = 10.0
_HISTORY_S = 1.0
_CERTIFICATES_S = 1.0
_FIRST_REGISTRATION_S = 3.0
_VIP_DISTANCE = 2
_LOG_OFFSET_DIGITS = 16


class _Running(NamedTuple):
    """What exists from a successful start until the stop."""

    store: MessageStore
    pulls: PullDeps
    clients: ClientDeps
    registrar: Registrar
    client: Client
    locks: LockDeps
    checks: CheckLoop


class Broker:
    """One broker on one event loop; `start` it once, `stop` it once."""

    def __init__(
        self,
        settings: LiveSettings[BrokerConfig],
        *,
        clock: Clock = wall_ms,
        steady: Clock = steady_ms,
        step: CrashPoint = no_crash_point,
    ) -> None:
        """Raises ConfigError for settings that contradict each other."""
        self._settings = settings
        self._clock = clock
        self._steady = steady
        self._step = step
        config = settings.config
        self._tls, self._client_tls = tls_of(config), client_tls_of(config)
        self._namesrvs = namesrv_addresses(config)
        self._paths = table_paths(config.config_directory)
        self.table_limits = limits = TableLimits(steady)
        self.topics = TopicTable(
            system_topics(config), clock, self._topics_changed,
            limits.checker("maxTopics", lambda: settings.config.max_topics),
        )  # fmt: skip
        self.groups = GroupTable(
            clock, partial(self._changed, self._paths.groups),
            limits.checker(
                "maxSubscriptionGroups", lambda: settings.config.max_subscription_groups
            ),
            limits.checker("maxGroupRules", lambda: settings.config.max_group_rules),
        )  # fmt: skip
        self.offsets = OffsetTable(
            partial(self._changed, self._paths.offsets), self._has_all_offsets
        )
        self.modes = ModeTable(partial(self._changed, self._paths.modes))
        self.consumers = ConsumerTable[Connection]()
        self.producers = ProducerTable[Connection]()
        self._client_ids = ClientIds[Connection]()
        self.parked = ParkedPulls[Connection, Waiting]()
        self._pull_waker = PullWaker(self.parked, steady, self._wake_pull, self._answer_due)
        self.stats = Stats(started_ms=clock())
        self.history = History(
            self.stats, clock(), cluster=config.broker_cluster_name,
            is_detailed=lambda: settings.config.enable_detail_stat,
            on_totals=partial(self._changed, self._paths.totals),
        )  # fmt: skip
        self.address = ""
        """What clients are told to connect to, once started."""
        self._saver: TableSaver | None = None
        self._access: AccessControl | None = None
        self._entrance = RequestPipeline(settings, None, None)
        self._runtime: Callable[[], dict[str, str]] = dict
        self._limits = Limits(idle_ms=config.server_channel_max_idle_time_seconds * 1000)
        self._web: WebServer | None = None
        self.web_port = 0
        """Where /metrics and /health are, if they are served."""
        self._store: MessageStore | None = None
        self._scheduled: ScheduledMessages | None = None
        self._pops: Pops | None = None
        self._polls: ParkedPops | None = None
        self._turnstile: FairQueue | None = None
        self._server: Server | None = None
        self._dispatch: HandlerTable | None = None
        self._hot: FastPath | None = None
        self._running: _Running | None = None
        self._background: list[asyncio.Task[None]] = []

    @property
    def registered_with(self) -> frozenset[str]:
        """The nameservers that know this broker now."""
        return self._running.registrar.registered if self._running else frozenset()

    # -- starting ----------------------------------------------------------------------------------

    async def start(self) -> tuple[str, int]:
        """Open the store, listen and register; returns the address listened on.

        Raises TianzhouError; `stop` is safe after that.
        """
        config = self._settings.config
        self._loop = asyncio.get_running_loop()
        # The store locks its folder, so it comes before the tables in it are touched.
        arrived = self._message_committed if config.is_staged else self._message_arrived
        self._store = await asyncio.to_thread(
            MessageStore.open, config, clock=self._clock, on_arrival=arrived, steady=self._steady
        )
        if (short := disk_space_check.problem(config)) is not None:
            log.warning("%s", short)
        self._scheduled = ScheduledMessages(
            self._settings, self._store, self.topics, self._clock, self._step, self._delivered
        )
        self._load_tables(self._scheduled)
        self._access = self._access_control(config, self._store)
        quotas = quota.open_quotas(config.quota_file, self._steady, self._quotas_changed)
        self._entrance = RequestPipeline(self._settings, self._access, quotas)
        host, port = await self._listen(config)
        peers = [host for host, _ in parse_addresses(config.namesrv_addr or "")]
        own_host = advertised_address.choose_address(config.broker_ip1, config.bind_address, peers)
        for problem in advertised_address.problems(own_host, port, config.bind_address, peers):
            log.warning("%s", problem)
        self.address = format_address(own_host, port)
        self._running = self._put_together(config, self._store, own_host, port)
        self._scheduled.start()
        if config.copy_metadata_on_join and copy_metadata.is_new(self.topics):
            await copy_metadata.copy_metadata(
                self._running.client, self._namesrvs, config.broker_cluster_name,
                config.broker_name, self.topics, self.groups,
            )  # fmt: skip
        if config.metrics_exporter_type is MetricsExporter.PROM:
            await self._serve_figures(
                config, self._store, self._scheduled, self._running.checks.halves
            )
        await self._announce()
        return host, port

    @property
    def request_codes(self) -> frozenset[int]:
        """The request codes that are served; none before the start."""
        return self._dispatch.codes if self._dispatch else frozenset()

    def _delivered(self, topic: str, queue_id: int, size_bytes: int) -> None:
        """A message that waited is stored under its own topic."""
        self.stats.stored_by(topic, queue_id, 1, size_bytes, 1)

    async def _serve_figures(
        self,
        config: BrokerConfig,
        store: MessageStore,
        scheduled: ScheduledMessages,
        halves: Halves,
    ) -> None:
        # The library takes memory that a broker without such pages need not spend.
        from tianzhou.broker.metrics import prometheus
        from tianzhou.broker.metrics.backlog import BacklogDeps
        from tianzhou.broker.metrics.legacy_exporter import ExporterDeps

        assert self._pops is not None
        pops = self._pops.table
        waiting = BacklogDeps(store, self.stats, halves.open_count, scheduled.timer_stats, pops)
        deps = prometheus.MetricDeps(
            self._settings, self.topics, self.groups, self.offsets, self.consumers, self.producers,
            store, self.stats, lambda: len(self.parked),
            lambda: self._entrance.quotas.refused if self._entrance.quotas else {},
            self.table_limits.refused,
            lambda: self._access.refused if self._access else {}, waiting,
            ExporterDeps(
                self._settings, self.address, self.topics, self.offsets, self.consumers,
                self.producers, store, self.history, self._runtime, self._clock,
            ),
        )  # fmt: skip
        self._web = WebServer(prometheus.pages(deps))
        host = config.metrics_prom_exporter_host or config.bind_address
        try:
            self.web_port = await self._web.listen(host, config.metrics_prom_exporter_port)
        except RemotingError as e:
            raise RemotingError(
                f"/metrics cannot be served (metricsPromExporterHost, metricsPromExporterPort): {e}"
            ) from e
        log.info("serving /metrics and /health on port %d", self.web_port)

    def _access_control(self, config: BrokerConfig, store: MessageStore) -> AccessControl | None:
        if not config.acl_enable:
            return None
        home = config.rocketmq_home
        return AccessControl(
            home / config.acl_file, home / config.acl_folder,
            lambda log_offset: place_at(store, log_offset), self._clock,
            Rights(
                lambda topic: self.topics.get(topic) is not None,
                lambda group: self.groups.get(group) is not None,
                config.msg_trace_topic_name,
            ),
        )  # fmt: skip

    def _load_tables(self, scheduled: ScheduledMessages) -> None:
        paths = self._paths
        for path, load in (
            (paths.topics, self.topics.load),
            (paths.groups, self.groups.load),
            (paths.offsets, self.offsets.load),
            (paths.modes, self.modes.load),
        ):
            load_table(path, load)
        try:
            load_table(paths.totals, lambda found: self.history.load(found, self._clock()))
        except StoreCorrupt as e:
            log.warning("totals begin at 0: %s", e)
        self._saver = TableSaver(
            {
                paths.topics: lambda: encode_table_steps(self.topics.as_file()),
                paths.groups: lambda: encode_table_steps(self.groups.as_file()),
                paths.offsets: lambda: encode_table_steps(self.offsets.as_file()),
                paths.totals: self._encode_totals,
                paths.modes: lambda: encode_table_steps(self.modes.as_file()),
                **scheduled.encoders(),
            }
        )

    async def _listen(self, config: BrokerConfig) -> tuple[str, int]:
        self._server = Server(
            self._handle,
            limits=quota.limits_by(self._entrance.quotas, self._limits),
            tls=self._tls,
            on_closed=self._connection_closed,
            feed=self._feed,
        )
        self.stats.channels = partial(channel_activity, self._server)
        host = config.bind_address
        address = await self._server.listen(host, config.listen_port)
        if config.vip_listen_enable and config.listen_port > _VIP_DISTANCE:
            await self._server.listen(host, config.listen_port - _VIP_DISTANCE)
        return address

    def _put_together(
        self, config: BrokerConfig, store: MessageStore, own_host: str, port: int
    ) -> _Running:
        settings, stats, limits = self._settings, self.stats, self.table_limits
        clock, steady = self._clock, self._steady
        store_host = (advertised_address.resolve(own_host), port)
        durability = Durability(
            store, config.flush_disk_type, config.broker_role, config.sync_flush_timeout
        )
        writer = MessageWriter(store)
        halves = Halves(settings, store, writer, self.offsets, clock, steady, store_host)
        checks = CheckLoop(
            halves, settings, store, self.topics, steady, store_host,
            CheckSender(self.producers, config.broker_name, store_host, self._may_publish),
        )  # fmt: skip
        # A half cannot be delayed as well, so the redirect of halves comes first.
        writer.add_redirect(halves.redirect)
        assert self._scheduled is not None
        writer.add_redirect(self._scheduled.redirect)
        delays = self._scheduled.delays
        self._turnstile = FairQueue(self._scheduled.slices)
        queue_locks = LockDeps(
            settings, self.topics, self.groups, limits, QueueLocks(), QueueLocks(), steady
        )
        pulls = PullDeps(
            settings, self.topics, self.groups, self.consumers, self.offsets, store, self.parked,
            stats, steady, self._pull_waker.arm, self._pull_found,
            self._may_consume,
        )  # fmt: skip
        clients = ClientDeps(
            settings, self.topics, self.groups, self.consumers, self.producers, self._client_ids,
            limits, clock, steady,
        )  # fmt: skip
        pops = pop.put_together(
            settings, self.topics, self.groups, self.offsets, store, stats, limits, clock,
            steady, store_host, self._save_tables, self._scheduled.timed_until_ms,
            self._may_consume, self._step,
        )  # fmt: skip
        self._pops, self._polls = pops.pops, pops.polls
        client = Client(tls=self._client_tls, credentials=inner_credentials(config))
        send = SendDeps(
            settings, self.topics, store, writer, durability, SendGate(), stats, clock, steady,
            store_host, encode_offset_id(store_host, 0)[:-_LOG_OFFSET_DIGITS], self._save_tables,
            self.groups, lambda group: locks.is_locked(queue_locks, group), self._step,
        )  # fmt: skip
        # Signatures are checked in front of the handlers, so the feed must not pass them by.
        # It writes neither into a staging pool nor units beside the queues.
        plain = not (config.is_staged or config.enable_consume_queue_ext)
        feed = kernel.new_feed()
        if self._access is None and plain and feed is not None:
            self._hot = FastPath(
                feed, send, pulls, self._limits.frame_bytes,
                self._entrance.is_free_topic, lambda: len(pops.polls) > 0,
            )  # fmt: skip
        about = BrokerDeps(
            settings, asyncio.Lock(), stats.started_ms, store, durability, stats,
            self.history, lambda: len(self.parked), self._scheduled.runtime_info, clock,
            self._access is not None, self._settings_changed,
        )  # fmt: skip
        self._runtime = partial(runtime_info, about)
        self._dispatch = HandlerTable(
            handlers_of(
                HandlerDeps(
                    send=send,
                    pull=pulls,
                    offsets=OffsetDeps(
                        settings, self.topics, self.groups, self.offsets, store, self.consumers,
                        limits, self._save_tables,
                    ),
                    clients=clients,
                    query=QueryDeps(store),
                    topics=TopicDeps(
                        settings, self.topics, self.consumers, self.offsets, store, self.history,
                        clock, lambda: self.address, self._save_tables,
                    ),
                    groups=GroupDeps(
                        settings, self.topics, self.groups, self.consumers, self.offsets,
                        self.history, clock, self._save_tables,
                    ),
                    cold=ColdDeps(store),
                    acl=AclDeps(
                        settings, self._access.files if self._access else None, asyncio.Lock(),
                        lambda: self.address,
                    ),
                    broker=about,
                    stats=StatsDeps(
                        settings, self.topics, self.groups, self.consumers, self.offsets, store,
                        self.history, clock, lambda: self.address, stats, pops.pops.table,
                    ),
                    store=StoreDeps(
                        self.topics, self.consumers, store, self.history, clock, delays.as_file,
                        self._scheduled.timer_checkpoint,
                    ),
                    locks=queue_locks,
                    transactions=TransactionDeps(
                        settings, halves, store, durability, stats, steady, self.topics,
                        self._save_tables,
                    ),
                    reply=ReplyDeps(settings, self.producers, send, clock),
                    relay=RelayDeps(
                        settings, self.topics, self.groups, self.consumers, self.offsets, store,
                        self._offsets_reset,
                    ),
                    send_back=SendBackDeps(
                        settings, self.topics, self.groups, store, writer, durability, stats,
                        store_host, self._save_tables, self._turnstile, self._step,
                    ),
                    recall=RecallDeps(
                        settings, self.topics, writer, durability, clock, store_host
                    ),
                    pop=pops,
                    assignment=AssignmentDeps(
                        settings, self.topics, self.groups, self.consumers, self.modes, limits,
                        client, steady, self._save_tables,
                    ),
                )
            )
        )  # fmt: skip
        ha_host = config.broker_ip2 or own_host
        registrar = Registrar(
            settings, self.topics, client, self.topics.mark_ordered,
            address=self.address, ha_address=format_address(ha_host, config.ha_port),
        )  # fmt: skip
        return _Running(store, pulls, clients, registrar, client, queue_locks, checks)

    async def _announce(self) -> None:
        """Register, and keep at it; a nameserver that is away does not hold up the start."""
        assert self._running is not None
        running = self._running
        first = asyncio.create_task(running.registrar.register())
        await asyncio.wait((first,), timeout=_FIRST_REGISTRATION_S)
        self._background = [
            asyncio.create_task(self._keep_registered(first, running.registrar)),
            asyncio.create_task(self._repeat(lambda: _SWEEP_S, self._sweep)),
            asyncio.create_task(self._repeat(self._silence_period_s, self._close_silent)),
            asyncio.create_task(self._save_often()),
            asyncio.create_task(self._repeat(lambda: _HISTORY_S, self._tick_history)),
            asyncio.create_task(running.checks.run()),
            asyncio.create_task(asyncio.to_thread(prepare_sql)),
            asyncio.create_task(self._run_waits()),
            asyncio.create_task(self._run_pops()),
        ]
        if self._access is not None:
            look = self._repeat(lambda: LOOK_S, self._access.look)
            self._background.append(asyncio.create_task(look))
        if self._entrance.quotas is not None:
            look = self._repeat(lambda: quota.LOOK_S, self._entrance.quotas.look)
            self._background.append(asyncio.create_task(look))
        if (tls_files := tls_files_of(self._settings.config)) and self._server is not None:
            renewal = Renewal(tls_files, self._server.reload_tls, running.client.reload_tls)
            look = self._repeat(lambda: _CERTIFICATES_S, renewal.look)
            self._background.append(asyncio.create_task(look))
        if not self._namesrvs:
            log.warning(
                "no nameserver is configured (namesrvAddr), so clients cannot find this one"
            )

    async def _keep_registered(self, first: asyncio.Task[None], registrar: Registrar) -> None:
        await first
        await registrar.run()

    # -- while it runs -----------------------------------------------------------------------------

    async def register(self) -> None:
        """Tell all nameservers at once, instead of soon; returns when they know."""
        if self._running is not None:
            await self._running.registrar.register()

    def clock_moved(self) -> None:
        """A clock that was given was moved; look again at everything that waits for a time."""
        self._pull_waker.expire_due()
        if self._scheduled is not None:
            self._scheduled.clock_changed()
        if self._pops is not None and self._polls is not None:
            self._pops.clock_changed()
            self._polls.expire_due()
        if self._running is not None:
            self._running.checks.clock_changed()

    # -- stopping ----------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop in good order; safe after a failed `start` and when it has stopped already."""
        background, self._background = self._background, []
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        running, self._running = self._running, None
        if running is not None:
            await running.registrar.unregister()
            pull.answer_all(running.pulls)
        if self._polls is not None:
            self._polls.close()
        self._pull_waker.cancel()
        web, self._web = self._web, None
        if web is not None:
            await web.close()
        server, self._server = self._server, None
        if server is not None:
            await server.close(self._settings.config.shutdown_wait_time_seconds)
        if self._turnstile is not None:
            self._turnstile.close()
        if running is not None:
            await running.checks.stop()
            await running.client.close()
        scheduled, self._scheduled = self._scheduled, None
        if scheduled is not None:
            await scheduled.stop()
        pops, self._pops = self._pops, None
        if pops is not None:
            await pops.stop()
        saver, self._saver = self._saver, None
        if saver is not None:
            await saver.close()
        store, self._store = self._store, None
        if store is not None:
            await asyncio.to_thread(store.close)

    # -- what the parts call -----------------------------------------------------------------------

    def _handle(self, connection: Connection, request: Command) -> Answer:
        if self._dispatch is None:
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is starting")
        return self._entrance.pass_on(connection, request, self._dispatch)

    def _may_publish(self, connection: Connection, account: str | None, topic: str) -> bool:
        access = self._access
        return access is None or access.may_publish(connection.peer, account, topic)

    def _may_consume(
        self, connection: Connection, account: str | None, topic: str, group: str
    ) -> bool:
        access = self._access
        return access is None or access.may_consume(connection.peer, account, topic, group)

    def _feed(self, connection: Connection, view: memoryview, at: int) -> tuple[int, int] | None:
        if self._hot is None or not self._entrance.is_free_client(connection.peer):
            return None
        return self._hot.take(connection, view, at)

    def _pull_found(
        self, header: PullMessageRequest, subscription: Subscription, next_offset: int
    ) -> None:
        if self.offsets.is_reset(header.consumer_group, header.topic):
            return  # the feed would not tell those who have yet to learn of it
        if self._hot is not None and self._entrance.is_free_group(header.consumer_group):
            self._hot.pull_found(header, subscription, next_offset)

    def _quotas_changed(self, _: QuotaRules) -> None:
        if self._server is not None:
            self._server.adopt(quota.limits_by(self._entrance.quotas, self._limits))
        if self._hot is not None:
            self._hot.forget_all()

    def _connection_closed(self, connection: Connection) -> None:
        self.parked.remove_owner(connection)
        if self._polls is not None:
            self._polls.connection_closed(connection)
        if self._running is not None:
            heartbeat.connection_closed(self._running.clients, connection)

    def _changed(self, table: Path) -> None:
        """A table has to be saved."""
        if self._saver is not None:
            self._saver.mark(table)

    def _topics_changed(self) -> None:
        self._changed(self._paths.topics)
        if self._running is not None:
            self._running.registrar.topics_changed()

    def _has_all_offsets(self, count: int) -> bool:
        limit, what = self._settings.config.max_consumer_offsets, "no further offset is committed"
        return self.table_limits.is_full("maxConsumerOffsets", limit, count, what)

    def _offsets_reset(self, topic: str, queue_ids: Iterable[int]) -> None:
        """Pulls are to be told where to go on: those to come by the handlers, those who wait now.

        Parked ones of other groups look in vain.
        """
        if self._hot is not None:
            self._hot.forget_all()
        self._pull_waker.wake((topic, queue_id) for queue_id in queue_ids)

    def _encode_totals(self) -> Steps[bytes]:
        self.history.collect(self._clock())
        return one_step(lambda: encode_text(self.history.as_file()))

    def _tick_history(self) -> None:
        self.history.tick(self._clock())

    async def _save_tables(self) -> bool:
        return self._saver is not None and await self._saver.save()

    def _settings_changed(self, before: BrokerConfig, after: BrokerConfig) -> None:
        """A request has changed settings; what was derived from them follows."""
        if self._running is None:
            return
        self._running.store.adopt(after)
        if after.auto_create_topic_enable:
            for topic in system_topics(after):
                if topic.topic_name and self.topics.get(topic.topic_name) is None:
                    self.topics.put(topic)
        if after.broker_permission != before.broker_permission:
            # A nameserver looks at a registration only if the version of the topics is new.
            self.topics.touch()
        self._running.registrar.topics_changed()

    # -- waiting pulls -----------------------------------------------------------------------------

    def _message_committed(
        self, topic: str, queue_id: int, queue_offset: int, code: int, time_ms: int
    ) -> None:
        """Told by the thread of the store that commits, where a staging pool is in use."""
        arrival = (topic, queue_id, queue_offset, code, time_ms)
        self._loop.call_soon_threadsafe(self._message_arrived, *arrival)

    def _message_arrived(self, topic: str, queue_id: int, _: int, code: int, __: int) -> None:
        """Told by the store; those who wait are answered when this turn of the loop is over."""
        if topic in WAITING_TOPICS and self._scheduled is not None:
            self._scheduled.arrived(topic, code)
        if self._polls is not None and len(self._polls):
            self._polls.arrived(topic, queue_id)
        # Without long polling a pull is looked at when its short time is up, as in RocketMQ.
        if self._settings.config.long_polling_enable:
            self._pull_waker.arrived((topic, queue_id))

    def _wake_pull(self, parked: Parked[Connection, Waiting]) -> None:
        if self._running is not None:
            pull.wake(self._running.pulls, parked)

    def _answer_due(self, now_ms: int) -> None:
        if self._running is not None:
            pull.answer_due(self._running.pulls, now_ms)

    def _sweep(self) -> None:
        if self._running is not None:
            store = self._running.store
            self._pull_waker.wake(self.parked.overdue_queues(lambda key: store.max_offset(*key)))

    # -- background --------------------------------------------------------------------------------

    def _silence_period_s(self) -> float:
        return min(_SILENT_CLIENTS_S, self._settings.config.channel_expired_timeout / 1000)

    def _close_silent(self) -> None:
        if self._running is not None:
            heartbeat.close_silent(self._running.clients)
            locks.forget_expired(self._running.locks)

    async def _run_waits(self) -> None:
        if self._scheduled is not None and self._saver is not None:
            await self._scheduled.run(self._saver.save)

    async def _run_pops(self) -> None:
        if self._pops is not None:
            await self._pops.run()

    async def _save_often(self) -> None:
        while True:
            await asyncio.sleep(self._settings.config.flush_consumer_offset_interval / 1000)
            await self._save_tables()

    async def _repeat(self, period_s: Callable[[], float], work: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(period_s())
            try:
                work()
            except Exception:  # a bug in one round must not end all rounds to come
                log.exception("background work failed")
