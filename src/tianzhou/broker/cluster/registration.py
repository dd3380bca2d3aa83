"""Registers the broker with its nameservers while it runs.

The broker registers with every nameserver: at the start, every `registerNameServerPeriod`, and at
once when a topic changes. Nameservers do not share data, so registration with an unreachable one is
retried, and does not delay the others.
"""

import asyncio
import logging
import zlib
from collections.abc import Callable

import msgspec

from tianzhou.broker.config import BrokerConfig, namesrv_addresses
from tianzhou.broker.tables.topics import TopicTable
from tianzhou.config.live import LiveSettings
from tianzhou.errors import ConnectionClosed, TianzhouError
from tianzhou.limits import FRAME_BYTES_MAX
from tianzhou.names import PERM_READ, PERM_WRITE
from tianzhou.protocol.bodies import decode, registration
from tianzhou.protocol.bodies.registration import RegisterBrokerBody
from tianzhou.protocol.bodies.topics import KVTable, TopicConfig, TopicConfigTable
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import decode as decode_header
from tianzhou.protocol.headers import encode
from tianzhou.protocol.headers.namesrv import (
    BrokerRequest,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
)
from tianzhou.protocol.version import CURRENT_VERSION
from tianzhou.remoting import scheduler
from tianzhou.remoting.client import Client
from tianzhou.remoting.scheduler import Steps

log = logging.getLogger(__name__)

_PERIOD_MIN_MS = 10_000
_PERIOD_MAX_MS = 60_000
_RETRY_MS = 3_000
"""Interval of retries while a nameserver is unreachable, or knows no master of this slave."""
_UNREGISTER_TIMEOUT_MS = 3_000
_PAUSE_FACTOR = 4
_PAUSE_MAX_S = 2.0
_READ_WRITE = PERM_READ | PERM_WRITE
_PLAIN_BYTES_MAX = FRAME_BYTES_MAX // 2
"""A larger registration is always compressed."""


class Registrar:
    """Keeps a broker registered with all its nameservers."""

    def __init__(
        self,
        settings: LiveSettings[BrokerConfig],
        topics: TopicTable,
        client: Client,
        on_order_topics: Callable[[set[str]], None],
        *,
        address: str,
        ha_address: Callable[[], str],
        on_master: Callable[[str, str | None], None] = lambda address, ha_address: None,
        lacks_master: Callable[[], bool] = lambda: False,
        may_register: Callable[[], bool] = lambda: True,
        on_ignored: Callable[[str, int | None], None] | None = None,
    ) -> None:
        """`on_master` is called with the addresses of a slave's master, as a nameserver knows them.

        While `lacks_master`, nameservers are asked more often. While `may_register` is false the
        broker has no role that clients may see, and does not register. `on_ignored` is called with
        the nameserver that has another broker with this id, of a larger state version, and with
        that version, if the nameserver names it.
        """
        self._settings = settings
        self._topics = topics
        self._client = client
        self._on_order_topics = on_order_topics
        self._address = address
        self._ha_address = ha_address
        self._on_master = on_master
        self._lacks_master = lacks_master
        self._may_register = may_register
        self._on_ignored = on_ignored
        self._wanted = asyncio.Event()
        self._known: set[str] = set()
        """Nameservers whose last registration succeeded."""
        self._failed: set[str] = set()

    @property
    def registered(self) -> frozenset[str]:
        """The nameservers that this broker is registered with."""
        return frozenset(self._known)

    def topics_changed(self) -> None:
        """Register; changes in quick succession share one registration."""
        self._wanted.set()

    def master_lost(self) -> None:
        """Register shortly: the response tells a slave where its master is."""
        asyncio.get_running_loop().call_later(_RETRY_MS / 1000, self._wanted.set)

    async def run(self) -> None:
        """Register periodically, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._wanted.clear()
            started_s = loop.time()
            await self.register()
            # While thousands of topics are created, registration must not take most of the time.
            await asyncio.sleep(min((loop.time() - started_s) * _PAUSE_FACTOR, _PAUSE_MAX_S))
            config = self._settings.config
            period_ms = min(max(config.register_name_server_period, _PERIOD_MIN_MS), _PERIOD_MAX_MS)
            if self._failed.intersection(namesrv_addresses(config)) or self._lacks_master():
                period_ms = min(period_ms, _RETRY_MS)
            try:
                async with asyncio.timeout(period_ms / 1000):
                    await self._wanted.wait()
            except TimeoutError:
                pass

    async def register(self) -> None:
        """Register with every nameserver now; failures are logged."""
        if not self._may_register():
            return
        config = self._settings.config
        request = await scheduler.finish(self._registration(config))
        addresses = namesrv_addresses(config)
        self._known.intersection_update(addresses)
        await asyncio.gather(
            *(self._register_with(address, request, config) for address in addresses)
        )

    async def unregister(self, *, everywhere: bool = False) -> None:
        """Unregister from every nameserver that this broker is registered with.

        With `everywhere` from all: a registration that was cancelled may have arrived.
        """
        config = self._settings.config
        addresses = namesrv_addresses(config) if everywhere else list(self._known)
        header = BrokerRequest(
            broker_name=config.broker_name,
            broker_addr=self._address,
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
        )
        await asyncio.gather(*(self._unregister_from(each, header) for each in addresses))

    # -- one nameserver ----------------------------------------------------------------------------

    async def _register_with(self, address: str, request: Command, config: BrokerConfig) -> None:
        # Each connection sets its own opaque.
        command = msgspec.structs.replace(request)
        try:
            response = await self._client.request(
                address, command, config.register_broker_timeout_mills
            )
        except ConnectionClosed as e:
            # A port that accepts only TLS closes plain connections silently.
            hint = "" if self._client.speaks_tls else "; if it accepts TLS only, set useTLS=true"
            self._note_failure(address, f"{e}{hint}")
            return
        except TianzhouError as e:
            self._note_failure(address, str(e))
            return
        if response.code != ResponseCode.SUCCESS:
            self._note_failure(address, f"{response.remark} (response code {response.code})")
            return
        if response.remark:
            # Our nameserver ignores the older one of two brokers with one id, and says so.
            self._note_failure(address, response.remark)
            if self._on_ignored is not None:
                self._on_ignored(address, _state_version(response))
            return
        self._failed.discard(address)
        if address not in self._known:
            self._known.add(address)
            log.info("nameserver %s: registered as %s", address, self._address)
        self._apply_order_topics(address, response)
        self._note_master(config, response)

    def _note_failure(self, address: str, why: str) -> None:
        self._known.discard(address)
        if address not in self._failed:
            self._failed.add(address)
            log.warning("nameserver %s: not registered, retrying: %s", address, why)

    def _note_master(self, config: BrokerConfig, response: Command) -> None:
        if not config.is_slave:
            return
        try:
            found = decode_header(RegisterBrokerResponse, response.fields)
        except TianzhouError as e:
            log.warning("the response to a registration cannot be read: %s", e)
            return
        if found.master_addr and found.master_addr != self._address:
            self._on_master(found.master_addr, found.ha_server_addr or None)

    def _apply_order_topics(self, address: str, response: Command) -> None:
        if not response.body:
            return
        try:
            table = decode(KVTable, response.body).table
        except TianzhouError as e:
            log.warning("nameserver %s: its order configuration cannot be read: %s", address, e)
            return
        if table:
            self._on_order_topics(set(table))

    async def _unregister_from(self, address: str, header: BrokerRequest) -> None:
        command = Command(code=RequestCode.UNREGISTER_BROKER, ext_fields=encode(header))
        try:
            await self._client.request(address, command, _UNREGISTER_TIMEOUT_MS)
        except TianzhouError as e:
            log.warning("nameserver %s: not unregistered: %s", address, e)
        else:
            self._known.discard(address)

    # -- request -----------------------------------------------------------------------------------

    def _registration(self, config: BrokerConfig) -> Steps[Command]:
        content = RegisterBrokerBody(topic_config=(yield from self._table(config)))
        compressed, version = config.compressed_register, CURRENT_VERSION
        body = yield from registration.encode_steps(
            content, compressed=compressed, broker_version=version
        )
        if not compressed and len(body) > _PLAIN_BYTES_MAX:
            compressed = True
            body = yield from registration.encode_steps(
                content, compressed=True, broker_version=version
            )
        header = RegisterBrokerRequest(
            broker_name=config.broker_name,
            broker_addr=self._address,
            cluster_name=config.broker_cluster_name,
            ha_server_addr=self._ha_address(),
            broker_id=config.broker_id,
            compressed=compressed,
            body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
        )
        return Command(code=RequestCode.REGISTER_BROKER, ext_fields=encode(header), body=body)

    def _table(self, config: BrokerConfig) -> Steps[TopicConfigTable]:
        """The topics, with the permissions limited by brokerPermission."""
        table = self._topics.as_body()
        if config.broker_permission & _READ_WRITE == _READ_WRITE:
            return table
        forbidden = _READ_WRITE & ~config.broker_permission
        topics: dict[str, TopicConfig] = {}
        for name, topic in list(table.topics.items()):
            topics[name] = msgspec.structs.replace(topic, perm=topic.perm & ~forbidden)
            yield
        return msgspec.structs.replace(table, topics=topics)


def _state_version(response: Command) -> int | None:
    """Of the broker that is registered instead; None if the nameserver does not name it."""
    try:
        return decode_header(RegisterBrokerResponse, response.fields).state_version
    except TianzhouError:
        return None
