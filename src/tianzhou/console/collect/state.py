"""What a collector knows about a cluster between two rounds, and how readings change it. No I/O.

    BrokerReading    the answers of one broker in one round
    BrokerState      the newest known of one broker: figures, settings, offsets
    ClusterState     all brokers, the counts of the days, the members of groups

`ClusterState.apply` takes a reading in; `computing` makes a snapshot of the state. All of it is
used by one thread at a time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tianzhou.admin.fanout import BrokerRef
from tianzhou.admin.rates import BrokerRates
from tianzhou.admin.store_latency import Counts, between
from tianzhou.console.collect.ages import Recording
from tianzhou.console.collect.counting import NO_OFFSET, Ledger, Offsets, Position, SeriesKey
from tianzhou.console.collect.days import Days
from tianzhou.limits import TOPIC_QUEUES_MAX
from tianzhou.names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from tianzhou.protocol.bodies.clients import ConsumerConnection, ProducerInfo
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.ha import HARuntimeInfo
from tianzhou.protocol.bodies.ha_group import GroupInfo
from tianzhou.protocol.bodies.stats import TopicStatsTable
from tianzhou.protocol.bodies.topics import TopicConfig

FORGOTTEN_MS = 7 * 24 * 3600 * 1000
"""A broker that no nameserver lists is shown for so long after its last answer."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The offsets of a topic on one broker."""

    begins: Offsets
    ends: Offsets
    last_ms: int
    """When the newest message was stored, by the broker; 0: there is none."""
    read_ms: int
    steady_ms: int
    per_s: float | None = None
    """Growth since the reading before."""

    @property
    def produced(self) -> int:
        return sum(self.ends)

    @property
    def stored(self) -> int:
        return max(sum(self.ends) - sum(self.begins), 0)


@dataclass(frozen=True, slots=True)
class Progress:
    """The committed offsets of a group on a topic on one broker."""

    committed: Offsets
    read_ms: int
    steady_ms: int
    per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Members:
    """The members of a group, as one broker knows them."""

    read_ms: int
    connection: ConsumerConnection | None = None
    """None: no member is on line."""
    problem: str = ""


@dataclass(slots=True)
class BrokerReading:
    """The answers of one broker in one round."""

    at: BrokerRef
    read_ms: int
    """Time of day of the reading."""
    steady_ms: int
    """The same by steady time."""
    problem: str = ""
    """Why the broker did not answer; the rest is empty then."""
    rates: BrokerRates | None = None
    runtime: Mapping[str, str] = field(default_factory=dict[str, str])
    ha: HARuntimeInfo | None = None
    failover: GroupInfo | None = None
    topics: Mapping[str, TopicConfig] | None = None
    """None: unchanged, or not read."""
    groups: Mapping[str, SubscriptionGroupConfig] | None = None
    committed: Mapping[str, Mapping[int, int]] | None = None
    extents: dict[str, TopicStatsTable] = field(default_factory=dict[str, TopicStatsTable])
    failed_topics: dict[str, str] = field(default_factory=dict[str, str])
    """Topics whose offsets could not be read, with the reason."""
    cuts: dict[str, list[tuple[str, Offsets]]] = field(
        default_factory=dict[str, list[tuple[str, Offsets]]]
    )
    """By topic: its end offsets at each midnight since its position, with the day that ended.

    Of a topic that was never counted: those when yesterday began and when today began.
    """
    producers: Mapping[str, list[ProducerInfo]] | None = None
    warnings: list[str] = field(default_factory=list[str])
    is_log_unmoved: bool = False
    """Whether nothing was stored since the reading before."""

    @property
    def answered(self) -> bool:
        return not self.problem


@dataclass(slots=True)
class BrokerState:
    """The newest known of one broker."""

    at: BrokerRef
    answered: bool = False
    problem: str = "not asked yet"
    problem_since_ms: int | None = None
    seen_ms: int | None = None
    is_registered: bool = True
    rates: BrokerRates | None = None
    runtime: Mapping[str, str] = field(default_factory=dict[str, str])
    put_counts: Counts | None = None
    """Of the time since the reading before."""
    ha: HARuntimeInfo | None = None
    failover: GroupInfo | None = None
    is_known: bool = False
    """Whether its topics and groups were ever read."""
    topics: Mapping[str, TopicConfig] = field(default_factory=dict[str, TopicConfig])
    groups: Mapping[str, SubscriptionGroupConfig] = field(
        default_factory=dict[str, SubscriptionGroupConfig]
    )
    extents: dict[str, Extent] = field(default_factory=dict[str, Extent])
    failed_topics: Mapping[str, str] = field(default_factory=dict[str, str])
    recordings: dict[str, Recording] = field(default_factory=dict[str, Recording])
    progress: dict[str, dict[str, Progress]] = field(default_factory=dict[str, dict[str, Progress]])
    """By group, then by topic."""
    has_progress: bool = False
    producers: Mapping[str, list[ProducerInfo]] | None = None
    last_moved: dict[str, int] = field(default_factory=dict[str, int])
    """By topic: the round in which its offsets were last seen to move."""

    def end_of_log(self) -> str | None:
        """The end of its log, as it reports it; if it does not move, no topic does."""
        return self.runtime.get("commitLogMaxOffset")


@dataclass(slots=True)
class ClusterState:
    """All that is known about one cluster."""

    brokers: dict[tuple[str, int], BrokerState] = field(
        default_factory=dict[tuple[str, int], BrokerState]
    )
    """By broker name and id."""
    ledger: Ledger = field(default_factory=Ledger)
    members: dict[str, Members] = field(default_factory=dict[str, Members])
    round_number: int = 0

    def masters(self) -> list[BrokerState]:
        """The masters, by name."""
        found = [each for each in self.brokers.values() if each.at.is_master]
        return sorted(found, key=lambda each: each.at)

    def consumed_topics(self) -> frozenset[str]:
        """The topics that a group consumes on any broker."""
        return frozenset(
            topic
            for each in self.brokers.values()
            for topics in each.progress.values()
            for topic in topics
        )

    # -- the list of brokers -----------------------------------------------------------------------

    def set_registered(self, brokers: Iterable[BrokerRef], now_ms: int) -> None:
        """Note which brokers the nameservers list; others that were seen before stay known."""
        listed = {(at.name, at.broker_id): at for at in brokers}
        for key, at in listed.items():
            state = self.brokers.get(key)
            if state is None:
                self.brokers[key] = BrokerState(at)
            else:
                state.at, state.is_registered = at, True
        for key, state in list(self.brokers.items()):
            if key in listed:
                continue
            state.is_registered = False
            seen_ms = state.seen_ms
            if seen_ms is None or now_ms - seen_ms > FORGOTTEN_MS:
                del self.brokers[key]

    # -- readings ----------------------------------------------------------------------------------

    def apply(self, reading: BrokerReading, days: Days) -> None:
        """Take in the answers of one broker."""
        state = self.brokers[reading.at.name, reading.at.broker_id]
        if not reading.answered:
            if state.answered or state.problem_since_ms is None:
                state.problem_since_ms = reading.read_ms
            state.answered, state.problem = False, reading.problem
            return
        before = state.rates
        state.answered, state.problem, state.problem_since_ms = True, "", None
        state.seen_ms = reading.read_ms
        state.rates, state.runtime = reading.rates, reading.runtime
        state.put_counts = _put_counts(before, reading.rates)
        state.ha, state.failover = reading.ha, reading.failover
        if reading.producers is not None:
            state.producers = reading.producers
        was_known = state.is_known
        self._apply_settings(state, reading)
        self._apply_extents(state, reading, days)
        self._apply_progress(state, reading, days, was_known=was_known)

    def _apply_settings(self, state: BrokerState, reading: BrokerReading) -> None:
        if reading.topics is not None:
            state.topics = reading.topics
            for gone in state.extents.keys() - reading.topics.keys():
                del state.extents[gone]
                state.recordings.pop(gone, None)
                state.last_moved.pop(gone, None)
        if reading.groups is not None:
            state.groups = reading.groups
            state.is_known = True

    def _apply_extents(self, state: BrokerState, reading: BrokerReading, days: Days) -> None:
        state.failed_topics = reading.failed_topics
        if reading.is_log_unmoved:
            for topic, extent in state.extents.items():
                state.extents[topic] = replace(
                    extent, read_ms=reading.read_ms, steady_ms=reading.steady_ms, per_s=0.0
                )
        for topic, table in reading.extents.items():
            before = state.extents.get(topic)
            extent = _extent_of(table, reading)
            grown = self._count_topic(state.at.name, topic, extent, reading, days)
            if before is not None and before.ends != extent.ends:
                state.last_moved[topic] = self.round_number
            elapsed_ms = extent.steady_ms - before.steady_ms if before is not None else 0
            if grown is not None and elapsed_ms > 0:
                extent = replace(extent, per_s=grown * 1000 / elapsed_ms)
            state.extents[topic] = extent
            recording = state.recordings.get(topic)
            if recording is None:
                recording = state.recordings[topic] = Recording()
            recording.add(extent.ends, extent.steady_ms)

    def _count_topic(
        self, broker: str, topic: str, extent: Extent, reading: BrokerReading, days: Days
    ) -> int | None:
        """The growth of a topic since the reading before; None if there was none."""
        key, ledger = SeriesKey(topic), self.ledger
        position = ledger.position(key, broker)
        cuts = reading.cuts.get(topic)
        if position is None:
            if cuts is None and extent.last_ms < days.yesterday_ms:
                # Nothing was stored since.
                cuts = [("", extent.ends), (days.yesterday, extent.ends)]
            if cuts is None:
                ledger.begin(key, broker, Position(extent.ends, extent.read_ms), days.tomorrow)
                return None
            (_, base), *cuts = cuts
            ledger.begin(key, broker, Position(base, days.yesterday_ms), days.yesterday)
            ledger.add_split(key, broker, extent.ends, extent.read_ms, days.today, cuts)
            return None
        if cuts:
            grown = ledger.add_split(key, broker, extent.ends, extent.read_ms, days.today, cuts)
        else:
            grown = ledger.add(key, broker, extent.ends, extent.read_ms, days.today)
        return grown.added

    def _apply_progress(
        self, state: BrokerState, reading: BrokerReading, days: Days, *, was_known: bool
    ) -> None:
        state.has_progress = reading.committed is not None
        if reading.committed is None:
            state.progress = {}
            return
        progress: dict[str, dict[str, Progress]] = {}
        broker, ledger = state.at.name, self.ledger
        for name, by_queue in reading.committed.items():
            topic, _, group = name.partition("@")
            if topic not in state.topics:
                continue
            committed = _by_queue(by_queue)
            before = state.progress.get(group, {}).get(topic)
            key = SeriesKey(topic, group)
            extent = state.extents.get(topic)
            is_fresh = extent is not None and extent.steady_ms == reading.steady_ms
            ends = extent.ends if extent is not None and is_fresh else committed
            per_s: float | None = None
            if ledger.position(key, broker) is None:
                # A group that appears while the broker is watched has missed nothing.
                since = "" if was_known else days.tomorrow
                ledger.begin(key, broker, Position(committed, reading.read_ms), since)
                per_s = 0.0 if was_known else None
            else:
                grown = ledger.add(key, broker, committed, reading.read_ms, days.today, ends)
                elapsed_ms = reading.steady_ms - before.steady_ms if before is not None else 0
                if elapsed_ms > 0:
                    per_s = grown.added * 1000 / elapsed_ms
            progress.setdefault(group, {})[topic] = Progress(
                committed, reading.read_ms, reading.steady_ms, per_s
            )
        state.progress = progress

    def forget_gone(self) -> None:
        """Drop counts of topics and groups that no broker has, once every broker is known."""
        if not all(each.is_known and each.answered for each in self.masters()):
            return
        topics = {name for each in self.masters() for name in each.topics}
        groups = {name for each in self.masters() for name in each.groups}
        for key in list(self.ledger.series):
            series = self.ledger.series[key]
            is_gone = key.topic not in topics or (key.group and key.group not in groups)
            if is_gone and not series.changed:
                self.ledger.forget(key)
        for group in list(self.members.keys() - groups):
            del self.members[group]


def _put_counts(before: BrokerRates | None, now: BrokerRates | None) -> Counts | None:
    if now is None or now.put_counts is None:
        return None
    return between(before.put_counts if before is not None else None, now.put_counts)


def _extent_of(table: TopicStatsTable, reading: BrokerReading) -> Extent:
    highest = max((queue.queue_id for queue in table.offsets), default=-1)
    width = min(highest + 1, TOPIC_QUEUES_MAX)
    begins, ends, last_ms = [0] * width, [0] * width, 0
    for queue, each in table.offsets.items():
        if not 0 <= queue.queue_id < width:
            continue
        begins[queue.queue_id], ends[queue.queue_id] = each.min_offset, each.max_offset
        last_ms = max(last_ms, each.last_update_timestamp)
    return Extent(tuple(begins), tuple(ends), last_ms, reading.read_ms, reading.steady_ms)


def _by_queue(offsets: Mapping[int, int]) -> Offsets:
    """Offsets as a tuple by queue id."""
    width = min(max(offsets, default=-1) + 1, TOPIC_QUEUES_MAX)
    return tuple(offsets.get(queue_id, NO_OFFSET) for queue_id in range(width))


def is_quiet_kind(topic: str) -> bool:
    """Whether most topics of this kind never get a message, so that they are read less often."""
    return topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))
