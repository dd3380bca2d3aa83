"""What the handlers of one broker share: its settings, tables, store and features."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from tianzhou.broker.acl.files import AclFiles
from tianzhou.broker.background.crash_points import CrashPoint, no_crash_point
from tianzhou.broker.config import BrokerConfig, BrokerRole
from tianzhou.broker.longpoll.parked_pops import ParkedPops
from tianzhou.broker.longpoll.parked_pulls import ParkedPulls, WaitingRequest
from tianzhou.broker.pop.reviver import Pops
from tianzhou.broker.replication.failover import Failover
from tianzhou.broker.replication.service import Replication
from tianzhou.broker.replication.status import ReplicationStatus
from tianzhou.broker.scheduled.service import ScheduledMessages
from tianzhou.broker.statistics.counters import Stats
from tianzhou.broker.statistics.history import History
from tianzhou.broker.storing.durability import Durability
from tianzhou.broker.storing.overload import SendGate
from tianzhou.broker.storing.redirects import MessageWriter
from tianzhou.broker.tables.assignment import ModeTable
from tianzhou.broker.tables.clients import ClientIds, ConsumerTable, ProducerTable, Subscription
from tianzhou.broker.tables.groups import GroupTable
from tianzhou.broker.tables.offsets import OffsetTable
from tianzhou.broker.tables.queue_locks import QueueLocks
from tianzhou.broker.tables.topics import TopicTable
from tianzhou.broker.transactions.halves import Halves
from tianzhou.clock import Clock
from tianzhou.config.live import LiveSettings
from tianzhou.message import Host
from tianzhou.protocol.bodies.queues import MessageQueue
from tianzhou.protocol.headers.pull import PullMessageRequest
from tianzhou.remoting.client import Client
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.quota.tables import TableLimits
from tianzhou.remoting.scheduler import FairQueue
from tianzhou.store.message_store import MessageStore

WaitingPull = WaitingRequest[PullMessageRequest]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deps:
    """The dependencies of all handlers; a handler uses those of its subject."""

    settings: LiveSettings[BrokerConfig]
    clock: Clock
    steady: Clock
    crash_point: CrashPoint = no_crash_point
    address: str
    """The address that clients connect to."""
    store_host: Host
    """The same address, as records store it."""
    id_prefix: str
    """The store host as the prefix of message ids."""

    # -- tables and statistics
    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    modes: ModeTable
    consumers: ConsumerTable[Connection]
    producers: ProducerTable[Connection]
    client_ids: ClientIds[Connection]
    limits: TableLimits
    stats: Stats
    history: History
    saved: Callable[[], Awaitable[bool]]
    """Saves the tables; False if that failed."""

    # -- messages
    store: MessageStore
    writer: MessageWriter
    durability: Durability
    gate: SendGate
    scheduled: ScheduledMessages
    halves: Halves
    pops: Pops
    send_backs: FairQueue
    client: Client
    """For requests to nameservers."""
    replication: Replication
    replication_status: Callable[[], ReplicationStatus]
    """The slaves of this master, or the master of this slave, at the time of the call."""

    # -- replication
    has_master: Callable[[], bool] = lambda: False
    """Whether this broker is a slave that is connected to its master."""
    has_offsets: Callable[[], bool] = lambda: True
    """False on a slave that has not copied the offsets of consumers yet."""
    failover: Failover | None = None
    """Automatic failover: `role` is what it knows, `ask` carries out requests of operators. None
    with fixed roles."""

    # -- parked requests
    parked: ParkedPulls[Connection, WaitingPull]
    polls: ParkedPops
    arm: Callable[[], None]
    """Called after a pull was parked."""
    may_consume: Callable[[Connection, str | None, str, str], bool]
    """Whether the account of a connection may still consume a topic with a group."""

    # -- called after changes
    on_messages: Callable[[PullMessageRequest, Subscription, int], None]
    """Called for each pull answered with messages, with the next queue offset."""
    on_reset: Callable[[str, Iterable[int]], None]
    """Called with the queues whose offsets were reset."""
    change_role: Callable[[BrokerRole, int], Awaitable[None]]
    """Changes the role of the running broker."""
    on_settings: Callable[[BrokerConfig, BrokerConfig], None]
    """Called with the settings before and after a change."""

    # -- state of single subjects
    acl_files: AclFiles | None
    """None while access control is off."""
    acl_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    locks: QueueLocks = field(default_factory=QueueLocks)
    stray_locks: QueueLocks = field(default_factory=QueueLocks)
    """Locks of queues that this broker does not have: few, to leave capacity for others."""
    rotations: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """Pops by topic and group; the first queue of a pop rotates."""
    routes: dict[str, tuple[int, list[MessageQueue]]] = field(
        default_factory=dict[str, tuple[int, list[MessageQueue]]]
    )
    """Cached routes by topic: time of the query, and the queues."""
    cold_thresholds: dict[str, int] = field(default_factory=dict[str, int])
