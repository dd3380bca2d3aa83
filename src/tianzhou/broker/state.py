"""The tables and statistics of one broker, and the files they are saved to."""

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.statistics.counters import Stats
from tianzhou.broker.statistics.history import History
from tianzhou.broker.tables.assignment import ModeTable
from tianzhou.broker.tables.clients import ClientIds, ConsumerTable, ProducerTable
from tianzhou.broker.tables.groups import GroupTable
from tianzhou.broker.tables.offsets import OffsetTable
from tianzhou.broker.tables.saver import (
    TableSaver,
    encode_table_steps,
    encode_text,
    load_table,
)
from tianzhou.broker.tables.topics import TopicTable, system_topics
from tianzhou.clock import Clock
from tianzhou.config.live import LiveSettings
from tianzhou.errors import StoreCorrupt
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.quota.tables import TableLimits
from tianzhou.remoting.scheduler import Steps, one_step

log = logging.getLogger(__name__)

Encoders = Mapping[Path, Callable[[], Steps[bytes]]]
"""The content of each file, encoded in slices."""


class BrokerState:
    """Created empty, filled by `load`, saved by `save` and `close`."""

    def __init__(self, settings: LiveSettings[BrokerConfig], clock: Clock, steady: Clock) -> None:
        self._settings = settings
        self._clock = clock
        config = settings.config
        self.topics_path, groups_path, offsets_path, modes_path, self._totals_path = (
            config.config_directory / f"{name}.json"
            for name in (
                "topics", "subscriptionGroup", "consumerOffset", "messageRequestMode", "statistics"
            )
        )  # fmt: skip
        self.limits = limits = TableLimits(steady)
        self.topics = TopicTable(
            system_topics(config), clock, self._topics_changed,
            limits.checker("maxTopics", lambda: settings.config.max_topics),
        )  # fmt: skip
        self.groups = GroupTable(
            clock, partial(self._mark, groups_path),
            limits.checker(
                "maxSubscriptionGroups", lambda: settings.config.max_subscription_groups
            ),
            limits.checker("maxGroupRules", lambda: settings.config.max_group_rules),
        )  # fmt: skip
        self.offsets = OffsetTable(partial(self._mark, offsets_path), self._has_all_offsets)
        self.modes = ModeTable(partial(self._mark, modes_path))
        self.consumers = ConsumerTable[Connection]()
        self.producers = ProducerTable[Connection]()
        self.client_ids = ClientIds[Connection]()
        self.stats = Stats(started_ms=clock())
        self.history = History(
            self.stats, clock(), cluster=config.broker_cluster_name,
            is_detailed=lambda: settings.config.enable_detail_stat,
            on_totals=partial(self._mark, self._totals_path),
        )  # fmt: skip
        self.on_topics_changed: Callable[[], None] = lambda: None
        """Called after every change of the topic table."""
        self._tables: dict[Path, TopicTable | GroupTable | OffsetTable | ModeTable] = {
            self.topics_path: self.topics, groups_path: self.groups,
            offsets_path: self.offsets, modes_path: self.modes,
        }  # fmt: skip
        self._encoders: dict[Path, Callable[[], Steps[bytes]]] = {
            path: partial(self._encode, path) for path in self._tables
        }
        self._encoders[self._totals_path] = self._encode_totals
        self._saver = TableSaver(self._encoders)
        self._is_loaded = False
        self.log_end: Callable[[], int] | None = None
        """The end of the log of this broker, for the table of topics of a master."""

    def load(self) -> None:
        """Read the files of the last run. Raises StoreError.

        The store's lock on the folder must be held. Before this has succeeded nothing is saved: an
        empty table must not replace a file that could not be read.
        """
        for path, table in self._tables.items():
            load_table(path, table.load)
        try:
            load_table(self._totals_path, lambda content: self.history.load(content, self._clock()))
        except StoreCorrupt as e:
            log.warning("totals begin at 0: %s", e)
        self._is_loaded = True

    def add_files(self, encoders: Encoders) -> None:
        """Save these files, too."""
        self._encoders.update(encoders)

    async def remove_files(self, paths: Collection[Path]) -> None:
        """Save these files a last time."""
        await self.save(*paths)
        for path in paths:
            self._encoders.pop(path, None)

    async def save(self, *paths: Path) -> bool:
        """Save these files and every changed table; False if one could not be written."""
        return self._is_loaded and await self._saver.save(*paths)

    async def close(self) -> None:
        """Save everything a last time."""
        if self._is_loaded:
            await self._saver.close()

    def apply_config(self, before: BrokerConfig, after: BrokerConfig) -> None:
        """Apply changed settings to the topics, and have them registered again."""
        if after.auto_create_topic_enable and not after.is_slave:
            for topic in system_topics(after):
                if topic.topic_name and self.topics.get(topic.topic_name) is None:
                    self.topics.put(topic)
        if after.broker_permission != before.broker_permission:
            # A nameserver reads a registration only if the version of the topics is new.
            self.topics.touch()
        self.on_topics_changed()

    def update_history(self) -> None:
        """Add a sample to the statistics of the last minutes, hours and days."""
        self.history.tick(self._clock())

    def count_delivered(self, topic: str, queue_id: int, size_bytes: int) -> None:
        """Count a scheduled message that was stored under its own topic."""
        self.stats.stored(topic, 1, size_bytes, queue_id=queue_id)

    def _mark(self, path: Path) -> None:
        if self._is_loaded:
            self._saver.mark(path)

    def _topics_changed(self) -> None:
        self._mark(self.topics_path)
        self.on_topics_changed()

    def _has_all_offsets(self, count: int) -> bool:
        limit, what = self._settings.config.max_consumer_offsets, "no further offset is committed"
        return self.limits.is_full("maxConsumerOffsets", limit, count, what)

    def _encode(self, path: Path) -> Steps[bytes]:
        if path == self.topics_path and self.log_end and not self._settings.config.is_slave:
            self.topics.log_end = self.log_end()
        return encode_table_steps(self._tables[path].as_file())

    def _encode_totals(self) -> Steps[bytes]:
        self.history.collect(self._clock())
        return one_step(lambda: encode_text(self.history.totals))
