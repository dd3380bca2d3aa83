"""Replication of a broker in one role: a master has the HA port, a slave follows its master.

A master begins an epoch when it becomes master, by request or by its configuration, and after every
stop that was not clean: its log may have lost its end then, which a slave still has, and what it
writes next is different.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import tianzhou
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.replication import adaptation
from tianzhou.broker.replication.announcements import Announcements
from tianzhou.broker.replication.failover import Failover
from tianzhou.broker.replication.status import FOLLOWING, MasterRow, ReplicationStatus, SlaveRow
from tianzhou.broker.replication.tables import TableCopies
from tianzhou.broker.scheduled.service import ScheduledMessages
from tianzhou.broker.state import BrokerState
from tianzhou.broker.storing.durability import Durability
from tianzhou.clock import Clock
from tianzhou.config.live import LiveSettings
from tianzhou.errors import RemotingError, RequestError
from tianzhou.ha import elected_hello, epochs, hello
from tianzhou.ha.elected_follower import ElectedFollower
from tianzhou.ha.epochs import EpochFile
from tianzhou.ha.follower import Follower, MasterAddresses
from tianzhou.ha.hello import LogState, PortTls
from tianzhou.ha.listener import Listener, SlaveStatus, allowed_addresses
from tianzhou.ha.log_tail import crc_of
from tianzhou.ha.master_connection import Times
from tianzhou.ha.master_side import EpochRange, Rules, SlaveState
from tianzhou.ha.progress import Acknowledgements, Followers
from tianzhou.ha.store_id import load_store_id
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.ha import HelloRequest, HelloResponse
from tianzhou.remoting.address import format_address
from tianzhou.remoting.client import Client
from tianzhou.remoting.limits import Limits
from tianzhou.store import commit_log
from tianzhou.store.config import FlushDiskType
from tianzhou.store.message_store import MessageStore

log = logging.getLogger(__name__)

_OWN_HEARTBEAT_MS_MAX = 500
_DRAIN_POLL_S = 0.005


class _ConfirmedLog:
    """The log of a slave, as far as it is confirmed: tables wait for that part (R11)."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    @property
    def end_log_offset(self) -> int:
        return self._store.readable_log_offset

    def flushed(self, log_offset: int) -> Future[None]:
        return self._store.flushed(log_offset)


class Replication:
    """Created with the features of a role, started before registration.

    Raises StoreError for damaged files, ConfigError for settings that cannot be used.
    """

    def __init__(
        self,
        *,
        settings: LiveSettings[BrokerConfig],
        store: MessageStore,
        state: BrokerState,
        scheduled: ScheduledMessages,
        durability: Durability,
        client: Client,
        clock: Clock,
        host: str,
        port: int,
        limits: Limits,
        is_secured: bool,
        port_tls: Callable[[], ssl.SSLContext | None],
        failover: Failover | None = None,
    ) -> None:
        """`host` and `port` are those of clients; `is_secured`: requests need an account, or
        TLS. `port_tls` is the TLS of the ports of this broker.

        With `failover` the master is elected.
        """
        config = settings.config
        self._failover = failover
        self._settings = settings
        self._store = store
        self._state = state
        self._scheduled = scheduled
        self._durability = durability
        self._clock = clock
        self._host = host
        self._port = port
        self._ha_port = config.ha_port
        self._port_tls = port_tls
        self._ha_tls = PortTls.NONE if port_tls() is None else PortTls(config.tls_mode)
        self._epochs = failover.epochs if failover else EpochFile(config.root_directory)
        self._broker = hello.Broker(
            cluster=config.broker_cluster_name, name=config.broker_name, id=config.broker_id,
            store_id=load_store_id(config.root_directory),
        )  # fmt: skip
        self._master = MasterAddresses(None, config.ha_master_address)
        self.on_master_lost: Callable[[], None] = lambda: None
        """Called when a slave has lost its master: the nameservers may know another one."""
        self._was_connected = False
        self._listener: Listener | None = None
        self._announcements: Announcements | None = None
        self._acknowledgements: Acknowledgements | None = None
        self._follower: Follower | ElectedFollower | None = None
        self._copies: TableCopies | None = None
        store.is_copy = config.is_slave
        if config.is_slave:
            self._make_follower(config, state, scheduled, client)
        else:
            self._make_listener(config, limits, is_secured=is_secured)

    def _make_listener(self, config: BrokerConfig, limits: Limits, *, is_secured: bool) -> None:
        failover, followers = self._failover, self._followers(config)
        is_allowed: Callable[[str], bool] = lambda host: True  # noqa: E731
        if is_secured or config.ha_allowed_addresses:
            is_allowed = allowed_addresses(config.ha_allowed_addresses)
        self._listener = Listener(
            self._store,
            followers,
            rules=Rules(
                heartbeat_ms=config.ha_send_heartbeat_interval,
                own_heartbeat_ms=min(config.ha_send_heartbeat_interval, _OWN_HEARTBEAT_MS_MAX),
                silence_ms=config.ha_housekeeping_interval,
                without_older_ms=config.slave_timeout,
                batch_bytes=config.ha_transfer_batch_size,
            ),
            bytes_per_second=(
                config.max_ha_transfer_byte_in_second if config.ha_flow_control_enable else None
            ),
            allows_default=is_allowed,
            epoch_at=self._epoch_at,
            limits=limits,
            confirm_offset=failover.confirm_offset if failover else lambda: -1,
            may_heartbeat=failover.is_healthy if failover else lambda: True,
            on_handover_asked=failover.handover_asked if failover else lambda broker_id: None,
            tls=self._port_tls,
            is_tls_enforced=self._ha_tls is PortTls.REQUIRED,
        )

    def _followers(self, config: BrokerConfig) -> Followers:
        """What counts the slaves; before that, the epoch of what is stored from now on."""
        if self._failover is not None:
            return self._failover.slaves
        self._epochs.save(
            epochs.of_started_master(
                self._epochs.epochs, self._store.end_log_offset, self._broker.store_id,
                is_clean=self._store.report.clean,
            )
        )  # fmt: skip
        self._acknowledgements = Acknowledgements(
            config.in_sync_replicas, config.ha_slave_fallbehind_max,
            self._durability.replicas_advanced,
        )  # fmt: skip
        return self._acknowledgements

    def _make_follower(
        self,
        config: BrokerConfig,
        state: BrokerState,
        scheduled: ScheduledMessages,
        client: Client,
    ) -> None:
        if self._failover is not None:
            self._make_elected_follower(self._failover, state, scheduled, client)
            return
        self._follower = follower = Follower(
            self._store,
            self._epochs,
            self._broker,
            client,
            lambda: self._master,
            on_connected=self._connected,
            on_failed=self._disconnected,
            on_changes=self.note_changes,
            times=Times(
                silence_s=config.ha_housekeeping_interval / 1000,
                report_s=config.ha_send_heartbeat_interval / 1000,
            ),
            version=tianzhou.__version__,
        )
        self._copies = TableCopies(
            state=state, scheduled=scheduled, store=self._store, client=client,
            master_address=lambda: follower.listen_address,
            is_ours=lambda: follower.status().is_ours,
        )  # fmt: skip

    def _make_elected_follower(
        self, failover: Failover, state: BrokerState, scheduled: ScheduledMessages, client: Client
    ) -> None:
        self._follower = follower = failover.follower
        self._copies = TableCopies(
            state=state, scheduled=scheduled, store=_ConfirmedLog(self._store), client=client,
            master_address=lambda: follower.listen_address, is_ours=lambda: True,
        )  # fmt: skip
        if follower.is_connected:
            self._copies.connected()

    # -- starting and stopping ---------------------------------------------------------------------

    async def listen(self) -> None:
        """Open the HA port, on a master. Raises RemotingError, StoreError."""
        listener = self._listener
        if listener is None:
            return
        config = self._settings.config
        wanted = config.ha_listen_port or (self._port + 1 if config.listen_port else 0)
        try:
            self._ha_port = await listener.start(config.bind_address, wanted)
        except RemotingError as e:
            raise RemotingError(f"the port for slaves (haListenPort): {e}") from e
        self._announcements = Announcements(self._state, listener)
        self._announcements.begin()
        if self._failover is not None:
            self._store.on_end_moved = self._failover.own_log_grew
            return
        self._store.on_end_moved = listener.log_grew
        self._durability.replicas = self._acknowledgements

    async def follow(self) -> None:
        """Begin to follow the master, on a slave."""
        if isinstance(self._follower, Follower):
            await self._follower.start()

    async def run(self) -> None:
        """Copy the tables of the master, on a slave, until cancelled."""
        if self._copies is not None:
            await self._copies.run()

    async def stop_following(self) -> None:
        """Close the connection to the master."""
        if isinstance(self._follower, Follower):
            await self._follower.stop()

    async def close(self) -> None:
        """Close the HA port, when slaves have what was stored last or `slaveTimeout` is over."""
        if self._listener is None:
            return
        if self._announcements is not None:
            self._announcements.end()
        if self._failover is not None:
            # The state machine has seen to it that slaves have what counts.
            self._store.on_end_moved = None
            await self._listener.stop()
            return
        try:
            async with asyncio.timeout(self._settings.config.slave_timeout / 1000):
                # Reports of several connections end this, and new ones begin it again.
                while not self._slaves_have_all(self._listener):  # noqa: ASYNC110
                    await asyncio.sleep(_DRAIN_POLL_S)
        except TimeoutError:
            log.warning("the HA port is closed although slaves lack the end of the log")
        self._store.on_end_moved = None
        await self._listener.stop()
        self._durability.replicas = None
        self._durability.role_changed()

    def _slaves_have_all(self, listener: Listener) -> bool:
        end = self._store.end_log_offset
        return all(
            slave.reported >= end
            for slave in listener.status()
            if slave.state in (SlaveState.CATCHING_UP, SlaveState.IN_STEP)
        )

    async def finish_copies(self) -> None:
        """Apply the tables that the master has sent, before a promotion, as far as the log goes."""
        if self._copies is not None:
            await self._copies.finish(self._store.end_log_offset)
            if not self._copies.has_offsets:
                log.warning("offsets of consumers were never copied from a master: there are none")
            await adaptation.prepare_master(
                self._store, self._state, self._scheduled, self._settings.config
            )

    # -- addresses ---------------------------------------------------------------------------------

    @property
    def advertised_address(self) -> str:
        """The address that slaves connect to."""
        return format_address(self._settings.config.broker_ip2 or self._host, self._ha_port)

    def note_master(self, address: str, ha_address: str | None) -> None:
        """Where a nameserver has the master of this slave."""
        self._master = MasterAddresses(
            address, self._settings.config.ha_master_address or ha_address
        )

    def lacks_master(self) -> bool:
        """Whether a slave does not follow, so that nameservers are to be asked more often."""
        return self._follower is not None and self._follower.status().state != FOLLOWING

    @property
    def is_following(self) -> bool:
        """Whether a slave is connected to its master now."""
        return self._follower is not None and self._follower.status().state == FOLLOWING

    @property
    def has_offsets(self) -> bool:
        """Whether the consumer offsets of the group are here; a new slave has none at first."""
        return self._copies is None or self._copies.has_offsets

    @property
    def listener(self) -> Listener | None:
        """The HA port of a master."""
        return self._listener

    def note_connected(self) -> None:
        """The HA connection to an elected master is open: its tables can be copied."""
        if self._copies is not None:
            self._copies.connected()

    def note_changes(self, lines: bytes) -> None:
        """The master has announced changed topics or groups. Raises ReplicationError."""
        if self._copies is not None:
            self._copies.announced(lines)

    async def read_final_tables(self) -> None:
        """Read the tables of a master that hands over to this slave. Raises TianzhouError."""
        if self._copies is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "this broker is no slave")
        await self._copies.read_final()

    def _disconnected(self) -> None:
        if self._was_connected:
            self._was_connected = False
            self.on_master_lost()

    def _connected(self) -> None:
        self._was_connected = True
        if self._copies is not None:
            self._copies.connected()

    # -- hello -------------------------------------------------------------------------------------

    def respond_to_hello(self, request: Command, peer: str) -> HelloResponse:
        """The response of a master to one of our slaves. Raises RequestError, ProtocolError."""
        header = hello.read_request(request)
        if self._listener is None and header.store_id == self._broker.store_id:
            raise RequestError(ResponseCode.NO_PERMISSION, hello.HELLO_TO_ITSELF)
        if self._listener is None:
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"this broker is a slave itself, of {self._master.listen or 'an unknown master'}",
            )
        if self._failover is not None:
            return self._respond_elected(self._failover, self._listener, header, peer)
        state = self._log_state()
        refusal = hello.refusal_of(header, self._broker, state, partial(crc_of, self._store))
        if refusal is not None:
            self._listener.note_refused(f"id:{header.broker_id}", peer, header.end_offset, refusal)
            raise RequestError(ResponseCode.NO_PERMISSION, refusal)
        if (other := self._listener.displaced_by(header)) is not None:
            refusal = hello.id_is_taken(header.broker_id, other)
            name = f"id:{header.broker_id}, replaced"
            self._listener.note_refused(name, peer, header.end_offset, refusal)
            raise RequestError(ResponseCode.NO_PERMISSION, refusal)
        token = self._listener.issue_token(header)
        return hello.make_response(state, token=token, ha_port=self._ha_port, ha_tls=self._ha_tls)

    def _respond_elected(
        self, failover: Failover, listener: Listener, header: HelloRequest, peer: str
    ) -> HelloResponse:
        session = failover.session()
        if session is None:
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is not the master")
        state = self._log_state()
        verdict = elected_hello.judge(
            header, failover.own(), session, state,
            failover.known_incarnation(header.broker_id), partial(crc_of, self._store),
        )  # fmt: skip
        if verdict.newer_epoch:
            failover.epoch_seen(verdict.newer_epoch, f"the hello of replica {header.broker_id}")
        if verdict.refusal is not None:
            name = f"id:{header.broker_id}"
            listener.note_refused(name, peer, header.end_offset, verdict.refusal)
            raise RequestError(ResponseCode.NO_PERMISSION, verdict.refusal)
        return hello.make_response(
            state, token=None if verdict.must_cut else listener.issue_token(header),
            ha_port=self._ha_port, group=session.group,
            confirm_offset=failover.confirm_offset(), ha_tls=self._ha_tls,
        )  # fmt: skip

    def _log_state(self) -> LogState:
        config = self._settings.config
        return LogState(
            first_offset=self._store.first_log_offset,
            end_offset=self._store.end_log_offset,
            file_bytes=config.mapped_file_size_commit_log,
            epochs=self._epochs.epochs,
            is_flushed=config.flush_disk_type is FlushDiskType.SYNC_FLUSH,
        )

    def _epoch_at(self, log_offset: int) -> EpochRange:
        epoch, stop = epochs.range_at(self._epochs.epochs, log_offset)
        return EpochRange(epoch.number, epoch.start, stop)

    # -- changing the role -------------------------------------------------------------------------

    def begin_epoch(self) -> int:
        """Begin the epoch of a slave that becomes master; returns its number. Raises StoreError."""
        self._epochs.save(
            epochs.of_new_master(
                self._epochs.epochs, self._store.end_log_offset, self._broker.store_id
            )
        )
        return epochs.last_number(self._epochs.epochs)

    # -- status ------------------------------------------------------------------------------------

    @property
    def epochs(self) -> epochs.Epochs:
        """Which master wrote which part of the log."""
        return epochs.within_log(self._epochs.epochs, self._store.end_log_offset)

    def status(self) -> ReplicationStatus:
        """The slaves of a master, or the master of a slave."""
        end = self._store.end_log_offset
        slaves = self._listener.status() if self._listener is not None else []
        return ReplicationStatus(
            self._settings.config.broker_role, end,
            slaves=[self._slave_row(each, end) for each in slaves],
            master=self._master_row(end), epoch=epochs.last_number(self._epochs.epochs),
        )  # fmt: skip

    def _slave_row(self, slave: SlaveStatus, end: int) -> SlaveRow:
        is_connected = slave.state is not SlaveState.REFUSED
        behind = end - (slave.acknowledged if is_connected else slave.reported)
        follows = slave.state in (SlaveState.CATCHING_UP, SlaveState.IN_STEP)
        return SlaveRow(
            slave.name, slave.address, slave.acknowledged, behind,
            self._age_ms(slave.acknowledged) if is_connected else None,
            self._is_in_sync(slave, behind) if follows else False,
            slave.bytes_per_second, slave.position, slave.problem, is_connected,
        )  # fmt: skip

    def _is_in_sync(self, slave: SlaveStatus, behind: int) -> bool:
        """Whether a connected slave counts for SYNC_MASTER."""
        if self._failover is None:
            return behind <= self._settings.config.ha_slave_fallbehind_max
        session = self._failover.role.session
        in_force = session.counted.in_force if session else ()
        return slave.name in {f"id:{each}" for each in in_force}

    def _age_ms(self, log_offset: int) -> int | None:
        """How long the record at a log offset has been stored; 0 at the end of the log."""
        if log_offset >= self._store.end_log_offset:
            return 0
        fields = self._store.log.decode(log_offset, check_crc=False)
        return None if fields is None else max(self._clock() - fields[commit_log.STORE_TIME], 0)

    def _master_row(self, end: int) -> MasterRow | None:
        if self._follower is None:
            return None
        status = self._follower.status()
        known_end = status.master_end or None
        return MasterRow(
            self._master.listen, status.master_address or self._master.ha, status.state,
            status.is_ours, int(status.bytes_per_second), known_end,
            None if known_end is None else max(known_end - end, 0), status.last_read_ms,
            status.problem, status.last_write_ms,
        )  # fmt: skip
