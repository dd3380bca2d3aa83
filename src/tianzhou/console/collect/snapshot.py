"""One cluster at one moment: what every page of the console is made of.

The collector publishes a `Snapshot` after each round. It is immutable, so that pages read it
without a lock, and it is complete: a page never asks a broker for what is here.

    Unknown      A figure that is not known is None, never 0: a page shows "?" and the reason.
    At least     Figures of a topic or group are sums over the brokers that answered. `missing`
                 names the brokers of it that did not; the figure is then a lower bound ("at
                 least"). A lower bound of 0 says nothing and is None.
    Rates        Per second, over the time since the reading before; None at the first reading.
    Times        Milliseconds since 1970 (UTC) by the clock of the collector, durations in
                 milliseconds. Times of messages (`last_message_ms`) are those of the broker.
    Days         Begin at midnight in the time zone of the cluster.
"""

import zlib

import msgspec

from tianzhou.errors import BodyError


class Figures(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Base of the structs of a snapshot."""


# -- brokers ---------------------------------------------------------------------------------------


class Slave(Figures, frozen=True, kw_only=True):
    """A slave, as its master sees it."""

    name: str
    """ "id:1" on Tianzhou; the address on Apache."""
    address: str = ""
    is_in_sync: bool | None = None
    behind_bytes: int | None = None
    behind_ms: int | None = None
    """How long the first byte that it lacks has been in the log of the master; Tianzhou only."""
    problem: str = ""
    """Why it does not follow; empty if it does."""


class Replication(Figures, frozen=True, kw_only=True):
    """Replication of one broker: its slaves on a master, its master on a slave."""

    role: str = ""
    """ASYNC_MASTER, SYNC_MASTER or SLAVE; empty where the broker does not say it (Apache)."""
    epoch: int | None = None
    """Raised by each promotion; Tianzhou only."""
    end_offset: int | None = None
    """The end of the log of this broker."""
    in_sync_count: int | None = None
    """Slaves in sync, on a master."""
    slaves: tuple[Slave, ...] = ()
    master: str = ""
    """Address of the master that a slave follows; empty on a master."""
    behind_bytes: int | None = None
    """How far a slave is behind its master."""
    state: str = ""
    """What a slave does: "following", or what is wrong."""


class FailoverReplica(Figures, frozen=True, kw_only=True):
    """One replica of a group whose master is elected."""

    replica_id: int
    address: str = ""
    is_alive: bool = False
    is_master: bool = False
    is_in_sync: bool = False
    priority: int = 0
    """0: it is never elected."""
    behind_bytes: int | None = None
    behind_ms: int | None = None


class Failover(Figures, frozen=True, kw_only=True):
    """Automatic failover, as this broker sees it; only where the master is elected."""

    mode: str
    """What this replica is: starting, slave, candidate, promoting, master or stopped."""
    epoch: int
    master_id: int | None = None
    """The replica that is master; None: there is none."""
    in_sync: tuple[int, ...] = ()
    min_in_sync: int = 0
    is_paused: bool = False
    """Elections are paused by an operator."""
    refusal: str = ""
    """Why sends are refused; empty: they are accepted."""
    authority_problem: str = ""
    """Why etcd cannot be reached; empty: it answers."""
    alarms: tuple[str, ...] = ()
    """What an operator should look at."""
    replicas: tuple[FailoverReplica, ...] = ()
    switched_ms: int | None = None
    """Time of the last switch of master."""


class Broker(Figures, frozen=True, kw_only=True):
    """One broker process, master or slave. `answered` says whether the figures are of this round.

    Where it did not answer, every figure is None and `problem` says why.
    """

    name: str
    """Broker name, shared by a master and its slaves."""
    broker_id: int
    """0 is the master."""
    address: str
    cluster: str = ""
    """Its brokerClusterName: a console cluster may hold several."""
    answered: bool = False
    problem: str = ""
    """Why it did not answer in this round."""
    problem_since_ms: int | None = None
    """The first round in a row without an answer."""
    is_registered: bool = True
    """False: no nameserver lists it any more; it was seen before."""
    seen_ms: int | None = None
    """Time of its last answer."""
    answer_ms: float | None = None
    """Response time of the request for its figures."""

    version: str = ""
    """Such as "V4_9_7" or "V5_5_0", as the broker says it; empty if unknown."""
    is_tianzhou: bool | None = None
    """Whether it is one of Tianzhou's; None if unknown."""
    is_active: bool | None = None
    """Whether it runs the work of a master; None where the version does not say it."""
    boot_ms: int | None = None
    """When it started."""
    in_per_s: float | None = None
    """Messages stored per second over the last 10 s, as the broker reports it."""
    out_per_s: float | None = None
    """Messages delivered per second over the last 10 s, as the broker reports it."""
    in_today: int | None = None
    """Messages stored since midnight in the zone of the broker (D15: the broker's own figure)."""
    out_today: int | None = None
    in_yesterday: int | None = None
    out_yesterday: int | None = None
    put_p99_ms: float | None = None
    """Upper bound of the time to store a message, 99 of 100, since the round before."""
    put_max_ms: float | None = None
    put_counts: tuple[int, ...] | None = None
    """Messages stored within 0, 10, 50 ... ms; cumulative (`admin.store_latency`)."""
    disk_ratio: float | None = None
    """How full the fullest disk of the log is, 0 to 1."""
    log_begin_offset: int | None = None
    log_end_offset: int | None = None
    oldest_message_ms: int | None = None
    """When the oldest message in the log was stored."""
    waiting_sends: int | None = None
    """Sends that wait for a thread or for a flush."""
    waiting_pulls: int | None = None
    page_cache_lock_ms: float | None = None
    topic_count: int | None = None
    """Topics on it, system topics included; masters only."""
    group_count: int | None = None
    """Groups on it, internal groups included; masters only."""
    replication: Replication | None = None
    """None: unknown, or not reported by this version (4.9)."""
    failover: Failover | None = None
    """None: fixed roles, or unknown."""

    @property
    def label(self) -> str:
        """Display name: "broker-a", or "broker-a[1]" for a slave."""
        return self.name if self.is_master else f"{self.name}[{self.broker_id}]"

    @property
    def is_master(self) -> bool:
        return self.broker_id == 0


class Nameserver(Figures, frozen=True, kw_only=True):
    """One nameserver of the cluster's list."""

    address: str
    answered: bool = False
    problem: str = ""
    """Why it did not answer."""
    brokers: tuple[str, ...] = ()
    """Addresses of the brokers that it lists, sorted; nameservers of a cluster list the same."""
    answer_ms: float | None = None


# -- topics ----------------------------------------------------------------------------------------

NORMAL, RETRY, DEAD_LETTER, SYSTEM = "normal", "retry", "dlq", "system"
"""Values of `Topic.kind`."""


class TopicQueues(Figures, frozen=True, kw_only=True):
    """A topic on one broker."""

    broker: str
    """Broker name."""
    read: int
    write: int
    perm: int
    """PERM_READ 4 | PERM_WRITE 2 (`names`)."""
    is_ordered: bool = False
    attributes: tuple[tuple[str, str], ...] = ()
    """Attributes of 5.x, sorted."""
    produced: int | None = None
    """Messages ever written to its queues (sum of end offsets); None if unknown."""
    stored: int | None = None
    """Messages that its queues still hold (end - begin)."""


class Topic(Figures, frozen=True, kw_only=True):
    """One topic of the cluster."""

    name: str
    kind: str = NORMAL
    """NORMAL, RETRY, DEAD_LETTER or SYSTEM."""
    message_type: str = ""
    """Attribute message.type of 5.x, such as FIFO; empty if it has none."""
    is_ordered: bool = False
    queues: tuple[TopicQueues, ...] = ()
    """By broker name. A broker that is missing here does not have the topic, or is in `missing`."""
    settings_differ: bool = False
    """Whether brokers have different queue counts, permissions, order or attributes."""
    missing: tuple[str, ...] = ()
    """Names of brokers with the topic, or perhaps with it, whose figures are not in the sums."""
    as_of_ms: int | None = None
    """When the offsets were read; topics without groups are read less often than each round."""

    in_per_s: float | None = None
    today: int | None = None
    """Messages produced today."""
    yesterday: int | None = None
    stored: int | None = None
    """Messages that can still be read."""
    last_message_ms: int | None = None
    """When the last message was stored; None: unknown, or the topic is empty."""
    groups: tuple[str, ...] = ()
    """Consumer groups with a committed offset or a member on it, sorted."""

    @property
    def queue_count(self) -> int:
        """Queues that producers write to, over all brokers."""
        return sum(each.write for each in self.queues)


# -- groups ----------------------------------------------------------------------------------------


class Member(Figures, frozen=True, kw_only=True):
    """One consumer that is connected."""

    client_id: str
    address: str = ""
    language: str = ""
    version: str = ""


class Contradiction(Figures, frozen=True, kw_only=True):
    """A topic to which members of a group have different subscriptions: messages get lost."""

    topic: str
    sides: tuple[tuple[str, tuple[str, ...]], ...]
    """(filter, client ids) for each filter."""


class GroupTopic(Figures, frozen=True, kw_only=True):
    """Progress of a group on one topic, its retry topic included as a topic of its own."""

    topic: str
    lag: int | None = None
    """Messages not consumed yet: end offset - committed offset over all queues."""
    consumed_per_s: float | None = None
    oldest_age_ms: int | None = None
    """Age of the oldest message not consumed, exact to one interval; None: no lag, or unknown."""
    oldest_is_minimum: bool = False
    """The backlog is older than the memory of the collector: the age is a lower bound."""
    committed: int | None = None
    """Sum of the committed offsets."""
    consumed_today: int | None = None
    consumed_yesterday: int | None = None
    resets_today: int | None = None
    """How often offsets were set back or ahead; such moves do not count as consumption."""
    missing: tuple[str, ...] = ()
    """As in `Topic`."""


class Group(Figures, frozen=True, kw_only=True):
    """One consumer group of the cluster."""

    name: str
    is_internal: bool = False
    """RocketMQ's own group, hidden by default."""
    brokers: tuple[str, ...] = ()
    """Names of the brokers that have its settings."""
    is_enabled: bool | None = None
    """consumeEnable on every broker; False: paused on at least one."""
    settings_differ: bool = False
    retry_max: int | None = None
    missing: tuple[str, ...] = ()
    """As in `Topic`."""

    topics: tuple[GroupTopic, ...] = ()
    """By topic name; with the retry topic, without the dead-letter topic."""
    lag: int | None = None
    """Over all topics, the retry topic included, as `mqadmin consumerProgress` counts it; None also
    if the group has never committed an offset (`topics` is empty)."""
    consumed_per_s: float | None = None
    oldest_age_ms: int | None = None
    """The largest of its topics."""
    oldest_is_minimum: bool = False
    consumed_today: int | None = None
    consumed_yesterday: int | None = None
    resets_today: int | None = None

    dead_letters: int | None = None
    """Messages in %DLQ%group; 0 if there is no such topic."""
    dead_letters_today: int | None = None
    dead_letters_produced: int | None = None
    """Sum of the end offsets of %DLQ%group: its growth is the number of new dead letters."""

    members: tuple[Member, ...] | None = None
    """By client id; None: not read yet, or unknown. Read less often than each round."""
    members_ms: int | None = None
    """When the members were read."""
    members_problem: str = ""
    """Why they could not be read."""
    model: str = ""
    """clustering or broadcasting; empty without members. Lag of broadcasting is at the clients."""
    consume_type: str = ""
    """CONSUME_PASSIVELY (push), CONSUME_ACTIVELY (pull) or CONSUME_POP; empty without members."""
    subscriptions: tuple[tuple[str, str], ...] = ()
    """(topic, filter) as the broker has them."""
    contradictions: tuple[Contradiction, ...] = ()
    duplicate_ids: tuple[str, ...] = ()
    """Client ids that several processes use: they get the same queues."""


# -- the cluster -----------------------------------------------------------------------------------


class ProducerGroup(Figures, frozen=True, kw_only=True):
    """A producer group with clients on line."""

    name: str
    members: tuple[Member, ...]


class Totals(Figures, frozen=True, kw_only=True):
    """The cluster in one line."""

    brokers_known: int = 0
    brokers_answered: int = 0
    masters_missing: tuple[str, ...] = ()
    """Broker names without a master that answers."""
    in_per_s: float | None = None
    """Over the masters that answered."""
    out_per_s: float | None = None
    in_today: int | None = None
    out_today: int | None = None
    topics: int = 0
    """Topics of kind NORMAL."""
    groups: int = 0
    """Groups that are not internal."""
    groups_behind: int = 0
    """Those with a lag above 0."""
    groups_unknown: int = 0
    """Those whose lag is not known."""
    lag: int | None = None
    dead_letters_today: int | None = None
    disk_ratio_max: float | None = None


class Snapshot(Figures, frozen=True, kw_only=True):
    """One cluster at one moment."""

    cluster: str
    """The console's name of the cluster."""
    version: int
    """One more in each round, also over restarts; with `cluster` a good ETag."""
    as_of_ms: int
    """When the round began."""
    round_ms: int = 0
    """How long the round took."""
    request_count: int = 0
    """Requests of the round."""
    interval_ms: int = 60_000
    """Time until the next round begins."""
    interval_wanted_ms: int = 60_000
    """As configured; less than `interval_ms` if the rounds are slow."""
    interval_reason: str = ""
    """Why the interval is longer than configured; empty if it is not."""
    collector: str = ""
    """Which console instance collected it."""
    problem: str = ""
    """Why there is nothing new at all, such as: no nameserver responds. The figures below are then
    None, the names those of the last round."""
    warnings: tuple[str, ...] = ()
    """One line for each thing that could not be read."""
    zone: str = "UTC"
    """Time zone of the days."""
    day: str = ""
    """The day that `today` is, such as 2026-02-28."""

    totals: Totals = Totals()
    nameservers: tuple[Nameserver, ...] = ()
    brokers: tuple[Broker, ...] = ()
    """By name and id; also brokers that were seen before and are gone."""
    topics: tuple[Topic, ...] = ()
    """By name, all kinds."""
    groups: tuple[Group, ...] = ()
    """By name, internal groups included."""
    producers: tuple[ProducerGroup, ...] | None = None
    """By name; None: not read yet, or no broker tells them (4.9)."""

    @property
    def unanswered(self) -> tuple[Broker, ...]:
        """The brokers that did not answer, for the banner of a page."""
        return tuple(each for each in self.brokers if not each.answered)

    def is_stale(self, now_ms: int) -> bool:
        """Whether it must not be shown as fresh: older than three intervals."""
        return now_ms - self.as_of_ms > 3 * self.interval_ms

    def topic(self, name: str) -> Topic | None:
        """The topic with this name."""
        return next((each for each in self.topics if each.name == name), None)

    def group(self, name: str) -> Group | None:
        """The group with this name."""
        return next((each for each in self.groups if each.name == name), None)

    def broker(self, name: str, broker_id: int = 0) -> Broker | None:
        """The broker with this name and id."""
        wanted = (name, broker_id)
        return next((each for each in self.brokers if (each.name, each.broker_id) == wanted), None)


# -- packing ---------------------------------------------------------------------------------------

PACKED_BYTES_MAX = 64 * 1024 * 1024
"""Maximum size of an unpacked snapshot; a larger one in the database is rejected."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Snapshot)


def pack(snapshot: Snapshot) -> bytes:
    """As one value of a row, about 100 bytes a group."""
    return zlib.compress(_encoder.encode(snapshot), 1)


def unpack(data: bytes) -> Snapshot:
    """The snapshot that `pack` wrote. Raises BodyError."""
    try:
        unzip = zlib.decompressobj()
        plain = unzip.decompress(data, PACKED_BYTES_MAX)
        if unzip.unconsumed_tail:
            raise BodyError(f"the snapshot is larger than {PACKED_BYTES_MAX:,} bytes")
        return _decoder.decode(plain)
    except (zlib.error, msgspec.DecodeError) as e:
        raise BodyError(f"the snapshot cannot be read: {e}") from e
