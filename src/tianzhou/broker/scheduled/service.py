"""Runs the delay levels and the timer of a broker, and saves their progress.

Both deliver in slices (`remoting/scheduler.py`); a thread prefetches messages that are due
next (`disk_prefetch`). The saved progress says which messages need not be delivered again, so it
is saved only after these deliveries are on disk, and with SYNC_MASTER on slaves (`durability`).

On a slave nothing is delivered. The progress of the master replaces its own (`replace_delays`,
`replace_timer`) and is saved: a slave that becomes the master loads it, as after a restart.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

from tianzhou.broker.background.arrivals import Arrivals
from tianzhou.broker.background.crash_points import CrashPoint, no_crash_point
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.scheduled import timer_rules
from tianzhou.broker.scheduled.delay_levels import NO_HOOKS, DelayLevels, Hooks
from tianzhou.broker.scheduled.timer_checkpoint import (
    TimerCheckpoint,
    encode_checkpoint,
    encode_fields,
)
from tianzhou.broker.scheduled.timer_loop import GATHER_MS, Timer, load_checkpoint
from tianzhou.broker.scheduled.timer_stats import TimerStats
from tianzhou.broker.storing import disk_prefetch
from tianzhou.broker.storing.durability import Durability
from tianzhou.broker.tables.saver import encode_table_steps, load_table
from tianzhou.broker.tables.topics import TopicTable
from tianzhou.clock import Clock
from tianzhou.config.live import LiveSettings
from tianzhou.errors import StoreError
from tianzhou.names import SCHEDULE_TOPIC, TIMER_TOPIC
from tianzhou.remoting.scheduler import BackgroundWork, Budget, Steps, one_step
from tianzhou.store.message_store import Draft, MessageStore

log = logging.getLogger(__name__)

TOPICS = frozenset((SCHEDULE_TOPIC, TIMER_TOPIC))
"""Topics that hold messages until they are due."""
_HOUR_MS = 3_600_000
_PREFETCH_S = 0.25
_PREFETCH_AHEAD_MS = 1000
_PREFETCH_COUNT = 512

Save = Callable[..., Awaitable[bool]]
"""Saves the given files, and all others that have changed."""


class ScheduledMessages:
    """The delayed and timed messages of one broker."""

    def __init__(
        self,
        settings: LiveSettings[BrokerConfig],
        store: MessageStore,
        durability: Durability,
        topics: TopicTable,
        clock: Clock,
        crash_point: CrashPoint = no_crash_point,
        delivered: Callable[[str, int, int], None] = NO_HOOKS.delivered,
    ) -> None:
        """Loads the progress of a former run. Raises StoreError."""
        self._settings = settings
        self._store = store
        self._durability = durability
        self._clock = clock
        self._crash_point = crash_point

        def ensure_topic(topic: str, queue_id: int) -> None:
            topics.restore(topic, queue_id, settings.config)

        hooks = Hooks(crash_point, ensure_topic, delivered)
        config = settings.config
        folder = config.config_directory
        self.delay_path, self.check_path = folder / "delayOffset.json", folder / "timercheck"
        self._is_running = False
        self.budget = Budget(lambda: store.log.written)
        """Of all background work that writes to the log."""
        self.delays = DelayLevels(store, config.delay_levels_ms, hooks)
        load_table(self.delay_path, self.delays.load)
        if count := self.delays.catch_up():
            log.info("delay levels: %d messages were delivered after the last save", count)
        self._works = {
            SCHEDULE_TOPIC: BackgroundWork(
                "delayed messages", self.delays.run_slice, clock, self.budget
            )
        }
        self.timer: Timer | None = None
        self._is_check_ours = True
        """False if it is the progress of a master that is RocketMQ's."""
        if config.timer_wheel_enable:
            self.timer = Timer(
                store,
                config.root_directory / "timer" / "index.sqlite",
                load_checkpoint(self.check_path),
                self._roll_after_ms,
                hooks,
            )
            self._works[TIMER_TOPIC] = BackgroundWork(
                "timed messages", self.timer.run_slice, clock, self.budget
            )
        longest_ms = max(config.delay_levels_ms, default=0)
        if longest_ms >= config.file_reserved_time * _HOUR_MS > 0:
            log.warning(
                "messageDelayLevel: a level of %d h is longer than fileReservedTime (%d h), which "
                "loses messages; send them with TIMER_DELIVER_MS instead",
                longest_ms // _HOUR_MS, config.file_reserved_time,
            )  # fmt: skip

    def _roll_after_ms(self) -> int:
        config = self._settings.config
        return min(config.timer_roll_window_slot * 1000, config.file_reserved_time * _HOUR_MS // 2)

    def encoders(self) -> dict[Path, Callable[[], Steps[bytes]]]:
        """The files to save, with functions that encode them."""
        encoders: dict[Path, Callable[[], Steps[bytes]]] = {
            self.delay_path: lambda: encode_table_steps(self.delays.as_file())
        }
        if self.timer is not None:
            encoders[self.check_path] = lambda: one_step(self._encode_check)
        return encoders

    def _encode_check(self) -> bytes:
        check = TimerCheckpoint() if self.timer is None else self.timer.check
        return encode_checkpoint(check, is_ours=self._is_check_ours)

    def timer_checkpoint(self) -> bytes | None:
        """The fields of `timercheck`; None without a timer."""
        return None if self.timer is None else encode_fields(self.timer.check)

    # -- on a slave --------------------------------------------------------------------------------

    def replace_delays(self, content: dict[str, object]) -> None:
        """Use the master's progress of the delay levels. Raises BodyError."""
        assert not self._is_running, "only a slave uses the progress of another broker"
        self.delays.load(content)

    def replace_timer(self, check: TimerCheckpoint, *, is_ours: bool) -> None:
        """Use the master's progress of the timer; `is_ours` if the master is not RocketMQ's."""
        assert not self._is_running, "only a slave uses the progress of another broker"
        if self.timer is not None:
            self.timer.replace_check(check)
            self._is_check_ours = is_ours

    # -- a log that was cut, or ends here ----------------------------------------------------------

    def log_truncated(self, log_offset: int) -> None:
        """The log was cut there; the caller saves the files of `encoders`. Raises StoreError."""
        assert not self._is_running, "only the log of a slave is truncated"
        self.delays.log_truncated(log_offset)
        if self.timer is not None:
            try:
                self.timer.log_truncated(log_offset)
            except sqlite3.Error as e:
                raise StoreError(f"the timer index cannot be emptied: {e}") from e

    def limit_to_log(self) -> None:
        """Claim nothing that the log of this broker lacks, which becomes the master."""
        self.delays.limit()
        if self.timer is not None:
            self.timer.limit()

    def reload(self) -> None:
        """After `log_truncated`, before `start` of a master. Raises StoreError."""
        if self.timer is not None:
            try:
                self.timer.reload()
            except sqlite3.Error as e:
                raise StoreError(f"the timer index cannot be rebuilt: {e}") from e

    # -- messages ----------------------------------------------------------------------------------

    def redirect(self, draft: Draft, props: dict[str, str]) -> Draft | None:
        """A `Redirect`: the draft for the schedule or timer topic; None if it is not scheduled."""
        instead = self.delays.redirect(draft, props)
        if instead is None:
            config = self._settings.config
            instead = timer_rules.timed(
                draft, props, self._clock(),
                enabled=self.timer is not None, max_delay_s=config.timer_max_delay_sec,
            )  # fmt: skip
            if instead is not None:
                self._crash_point("timer: before the message waits")
        return instead

    def subscribe(self, arrivals: Arrivals) -> None:
        """Learn of the messages that are stored under TOPICS."""
        arrivals.subscribe_topics(TOPICS, self._arrived)

    def _arrived(self, topic: str, _: int, code: int) -> None:
        if topic in self._works:
            due_ms = code if topic == SCHEDULE_TOPIC else self._clock() + GATHER_MS
            self._works[topic].wake(due_ms)

    def timed_until_ms(self) -> int:
        """Every timed message that was due before this is delivered."""
        now_ms = self._clock()
        return now_ms if self.timer is None else self.timer.delivered_until_ms(now_ms)

    def timer_stats(self) -> TimerStats:
        """The statistics of the timer."""
        return TimerStats() if self.timer is None else self.timer.stats(self._clock())

    def runtime_info(self) -> dict[str, str]:
        """Statistics of the delay levels and the timer, under RocketMQ's keys."""
        timed = self.timer_stats()
        levels = {
            f"scheduleMessageOffset_{level}": f"{at},{end}"
            for level, (at, end) in self.delays.positions().items()
        }
        return levels | timed.as_runtime_info()

    # -- running -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Deliver from now on; not on a slave."""
        self._is_running = True
        for work in self._works.values():
            work.start()

    def clock_changed(self) -> None:
        """A clock was moved; messages may be due."""
        for work in self._works.values():
            work.wake_now()

    async def run(self, save: Save) -> None:
        """Prefetch and save periodically, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._prefetch_loop())
            group.create_task(self._save_delays(save))
            if self.timer is not None:
                group.create_task(self._save_timer(save, self.timer))

    async def _prefetch_loop(self) -> None:
        """Prefetch messages that are due next; they may be days old."""
        while True:
            await asyncio.sleep(_PREFETCH_S)
            if not self._is_running:
                continue
            until_ms = self._clock() + _PREFETCH_AHEAD_MS
            try:
                needed = self.delays.upcoming(until_ms, _PREFETCH_COUNT)
                if self.timer is not None:
                    needed += self.timer.upcoming(until_ms, _PREFETCH_COUNT)
                if needed:
                    await asyncio.to_thread(disk_prefetch.prefetch, self._store, needed)
            except (sqlite3.Error, OSError) as e:
                # Delivery detects the problem itself, and repairs it.
                log.debug("scheduled messages: not prefetched: %s", e)

    async def _save_delays(self, save: Save) -> None:
        while True:
            await asyncio.sleep(self._settings.config.flush_delay_offset_interval / 1000)
            if self._is_running and self.delays.unsaved and await self._secure_delays():
                # A restored topic must be saved before its message counts as delivered.
                await save()
                await save(self.delay_path)
                self._crash_point("delay: the progress is saved")

    async def _save_timer(self, save: Save, one: Timer) -> None:
        while True:
            await asyncio.sleep(self._settings.config.timer_flush_interval_ms / 1000)
            try:
                if self._is_running and one.unsaved and await self._secure_timer(one):
                    await save()
                    await save(self.check_path)
                    self._crash_point("timer: the progress is saved")
                    await asyncio.to_thread(one.index.checkpoint)
                    one.index.shorten_log()
            except sqlite3.Error as e:
                # A full disk, or a damaged index that the next slice rebuilds.
                one.unsaved = True
                log.warning("timer index: not saved: %s", e)

    async def _secure_delays(self) -> bool:
        """Wait for the current deliveries; returns whether their progress may be saved."""
        offsets, log_offset = dict(self.delays.offsets), self._store.end_log_offset
        if not await self._secured(log_offset):
            return False
        self.delays.flushed(offsets, self._clock(), log_offset)
        return True

    async def _secure_timer(self, one: Timer) -> bool:
        progress = one.progress(self._clock())
        if not await self._secured(self._store.end_log_offset):
            one.unsaved = True
            return False
        one.check = progress
        return True

    async def _secured(self, log_offset: int) -> bool:
        try:
            await self._durability.secured(log_offset)
        except StoreError as e:
            log.debug("scheduled messages: progress not saved: %s", e)
            return False
        return True

    async def stop(self) -> None:
        """Stop delivering, and flush the deliveries, so that the progress can be saved.

        A slave delivers nothing: its progress stays as it was loaded, or copied from its master.
        """
        for work in self._works.values():
            work.stop()
        if self._is_running:
            await self._secure_delays()
        if self.timer is not None:
            try:
                if self._is_running:
                    await self._secure_timer(self.timer)
                self.timer.close()
            except sqlite3.Error as e:
                # The index can be rebuilt; the store must still be closed.
                log.warning("timer index: not closed cleanly: %s", e)
