"""A broker whose role is decided by election: what its driver needs done in a change of the role.

The role is not saved in the configuration file, as it is decided anew at every start. Towards the
nameservers the master has id 0, a slave its identity in the group.

    start       store open, ports open, requests refused -> features of a slave -> driver
    to master   tables of the old master as far as the log has them; epoch in the registration
    to slave    features built again; what the tables claim beyond a cut log is dropped

"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import tianzhou
from tianzhou.broker.assembly import Core
from tianzhou.broker.config import ELECTION_ORIGIN, BrokerRole, inner_credentials
from tianzhou.broker.replication import adaptation
from tianzhou.broker.replication.failover import Failover
from tianzhou.broker.requests.loop_gap import LoopGap
from tianzhou.broker.role import RunningRole
from tianzhou.clock import boot_ms
from tianzhou.errors import StoreClosed, TianzhouError
from tianzhou.ha.authority.etcd import EtcdAuthority
from tianzhou.ha.authority.etcd_client import EtcdClient
from tianzhou.ha.authority.etcd_keys import group_keys
from tianzhou.ha.authority.values import Replica
from tianzhou.ha.elected_follower import ElectedFollower
from tianzhou.ha.epochs import EpochFile, Epochs
from tianzhou.ha.hello import Broker
from tianzhou.ha.listener import Listener
from tianzhou.ha.master_connection import Times
from tianzhou.ha.replica_facts import FactsFile, Start, flush_mode, read_boot_id
from tianzhou.ha.roles.facts import Settings, UncleanRecovery
from tianzhou.ha.store_id import load_store_id
from tianzhou.names import MASTER_ID
from tianzhou.remoting.address import format_address
from tianzhou.remoting.client import Client
from tianzhou.remoting.server import Server
from tianzhou.store.config import FlushDiskType

log = logging.getLogger(__name__)

_COPIES_MIN = 2
_REQUEST_S = 2.0
_RETRY_S = 0.1
_LASTING_RETRY_S = 1.0
_REPORT_S = 0.5
_GAP_PARTS = 3
_TABLES_S = 1.5
"""Less than the agreement of the master holds (`switching.AGREED_MS`)."""

Prepare = Callable[[RunningRole], Awaitable[dict[str, object]]]


def _role(role: BrokerRole, broker_id: int) -> dict[str, object]:
    """The settings of a role."""
    return {"broker_role": role, "broker_id": broker_id}


class ElectedBroker:
    """Meets `replication.host.Host`."""

    def __init__(
        self, core: Core, server: Server, replace_role: Callable[[Prepare, str], Awaitable[None]]
    ) -> None:
        """Raises StoreError for damaged files, ConfigError for settings that cannot be used."""
        self._core = core
        self._server = server
        self._replace_role = replace_role
        self.running: Callable[[], RunningRole | None] = lambda: None
        """What runs in the present role."""
        config = core.settings.config
        self._master_role = config.broker_role
        self._is_registered = False
        self._registering: asyncio.Task[None] | None = None
        root = config.root_directory
        self._epochs = EpochFile(root)
        self._facts = FactsFile(root, config.broker_cluster_name, config.broker_name)
        self._client = Client(tls=core.client_tls, credentials=inner_credentials(config))
        store_id = load_store_id(root)
        self._start = Start(
            was_clean=core.store.report.clean, boot_id=read_boot_id(), store_id=store_id,
            flush=flush_mode(config),
        )  # fmt: skip
        keys = group_keys(config.broker_cluster_name, config.broker_name, config.ha_etcd_prefix)
        authority = EtcdAuthority(
            EtcdClient(config.etcd_access, boot_ms), keys, config.ha_lease_seconds, boot_ms
        )
        ha_port = config.ha_listen_port or core.port + 1
        self.failover = Failover(
            settings=self._settings(),
            broker=Broker(
                cluster=config.broker_cluster_name, name=config.broker_name, id=0,
                store_id=store_id,
            ),
            store=core.store, serving=core.serving, epoch_file=self._epochs,
            facts_file=self._facts, authority=authority,
            replica=Replica(
                addr=core.address, ha=format_address(config.broker_ip2 or core.host, ha_port),
                store_id=store_id, boot_id=self._start.boot_id,
                empty=core.store.end_log_offset == core.store.first_log_offset,
                priority=config.broker_election_priority, version=tianzhou.__version__,
                group=self._facts.facts.group, seen_epoch=self._facts.facts.highest_epoch,
                seen_revision=self._facts.facts.state_revision,
            ),
            host=self, fence_command=config.ha_fence_command, role_command=config.ha_role_command,
        )  # fmt: skip
        self.failover.probe_authority = authority.probe
        self.failover.use_access = authority.use
        self._gap = LoopGap(
            config.ha_lease_seconds * 1000 // _GAP_PARTS, self.failover.loop_stood_still
        )

    def _settings(self) -> Settings:
        config = self._core.settings.config
        return Settings(
            min_in_sync=config.min_in_sync,
            copies=max(config.in_sync_replicas, _COPIES_MIN),
            lease_ms=config.ha_lease_seconds * 1000,
            priority=config.broker_election_priority,
            is_sync_flush=config.flush_disk_type is FlushDiskType.SYNC_FLUSH,
            unclean_recovery=UncleanRecovery(config.ha_unclean_recovery),
        )

    # -- starting and stopping ---------------------------------------------------------------------

    async def begin(self) -> None:
        """Before the first role is built: this broker is a slave. Raises StoreError."""
        core, config = self._core, self._core.settings.config
        self.failover.prepare(self._start)
        await self._be_slave(self._facts.known_id)
        self.failover.execution.follower = ElectedFollower(
            core.store,
            self._epochs,
            self._client,
            self.failover,
            times=Times(
                retry_s=_RETRY_S,
                lasting_retry_s=_LASTING_RETRY_S,
                # Heartbeats come every half second from a master that is well.
                silence_s=min(config.ha_housekeeping_interval / 1000, 2 * config.ha_lease_seconds),
                report_s=_REPORT_S,
                request_s=_REQUEST_S,
            ),
            version=tianzhou.__version__,
        )
        core.pipeline.obey(core.serving, self._gap)
        self._gap.start()

    def start(self) -> None:
        """Take part in the group."""
        self.failover.start(self._start)

    async def resign(self) -> None:
        """Before the stop: a master hands over to another replica."""
        await self.failover.resign()

    async def stop(self) -> None:
        """Take no part any more."""
        await self._gap.stop()
        await self.failover.stop()
        if self._registering is not None:
            self._registering.cancel()
            await asyncio.wait((self._registering,))
        await self._client.close()

    # -- roles -------------------------------------------------------------------------------------

    async def become_master(self, epoch: int) -> None:
        """See `host.Host`."""

        async def prepare(running: RunningRole) -> dict[str, object]:
            await running.features.replication.finish_copies()
            self._core.state.topics.begin_epoch(epoch)
            return _role(self._master_role, MASTER_ID)

        await self._replace_role(prepare, ELECTION_ORIGIN)
        log.warning("broker %s: is the master of epoch %d", self._name, epoch)

    async def become_slave(self) -> None:
        """See `host.Host`."""

        async def prepare(_: RunningRole) -> dict[str, object]:
            return _role(BrokerRole.SLAVE, self.failover.role.id)

        await self._replace_role(prepare, ELECTION_ORIGIN)
        log.warning("broker %s: is a slave", self._name)

    async def truncate(self, to: int, entries: Epochs, confirm: int) -> None:
        """See `host.Host`."""
        core, running = self._core, self.running()
        if running is None:
            raise StoreClosed("the broker is not running")
        await adaptation.truncate(
            core.store, self._epochs, core.state, running.features.deps.scheduled, to, entries,
            confirm=confirm,
        )  # fmt: skip

    async def start_empty(self, saved_from: int) -> Path | None:
        """See `host.Host`."""
        core, running = self._core, self.running()
        if running is None:
            raise StoreClosed("the broker is not running")
        return await adaptation.start_empty(
            core.store, self._epochs, core.state, running.features.deps.scheduled, saved_from
        )

    async def joined(self, replica_id: int) -> None:
        """See `host.Host`."""
        if self._core.settings.config.is_slave:
            await self._be_slave(replica_id)

    async def _be_slave(self, replica_id: int) -> None:
        settings = self._core.settings
        async with settings.lock:
            values = _role(BrokerRole.SLAVE, replica_id)
            settings.activate(settings.prepare_values(values, ELECTION_ORIGIN))

    def connected(self) -> None:
        """See `host.Host`."""
        running = self.running()
        if running is not None:
            running.features.replication.note_connected()

    def announced(self, lines: bytes) -> None:
        """See `host.Host`."""
        running = self.running()
        if running is not None:
            running.features.replication.note_changes(lines)

    async def read_final_tables(self) -> bool:
        """See `host.Host`."""
        running = self.running()
        try:
            if running is None:
                raise StoreClosed("the broker is not running")
            async with asyncio.timeout(_TABLES_S):
                await running.features.replication.read_final_tables()
        except (TianzhouError, TimeoutError) as error:
            log.warning(
                "broker %s: does not take over, as it could not copy the tables of the master: %s",
                self._name, str(error) or f"no response within {_TABLES_S:g} s",
            )  # fmt: skip
            return False
        return True

    @property
    def listener(self) -> Listener | None:
        """See `host.Host`."""
        running = self.running()
        return running.features.replication.listener if running is not None else None

    @property
    def _name(self) -> str:
        return f"{self._core.settings.config.broker_name}[{self.failover.role.id}]"

    # -- nameservers -------------------------------------------------------------------------------

    def may_register(self) -> bool:
        """Whether clients may know this broker now."""
        return self._is_registered

    def register(self, *, is_registered: bool) -> None:
        """See `host.Host`."""
        self._is_registered = is_registered
        before = self._registering
        if before is not None:
            before.cancel()
        self._registering = asyncio.get_running_loop().create_task(self._register(before))

    async def _register(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            with suppress(asyncio.CancelledError):
                await asyncio.wait((before,))
        running = self.running()
        if running is None:
            return
        registrar = running.features.registrar
        if self._is_registered:
            await registrar.register()
        else:
            await registrar.unregister(everywhere=True)
            for connection in tuple(self._server.connections):
                connection.close("this broker serves no clients now")
