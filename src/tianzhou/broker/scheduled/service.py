"""Everything that waits for its time in a broker: delay levels and the timer, started and stopped.

Both work in turns of the event loop (`pump.py`); what falls due soon is fetched from the disk by a
thread before (`cold.py`). What they save tells which messages need not be delivered again, so it is
saved only after the log is on disk as far as they were delivered.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

from tianzhou.broker.background.arrivals import Arrivals
from tianzhou.broker.background.crash_points import CrashPoint, no_crash_point
from tianzhou.broker.background.ticker import Ticker
from tianzhou.broker.background.yielding import SliceScheduler
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.scheduled import timer_rules
from tianzhou.broker.scheduled.delay_levels import DelayLevels, Delivered, ignore_delivery
from tianzhou.broker.scheduled.timer_checkpoint import encode_checkpoint, encode_fields
from tianzhou.broker.scheduled.timer_loop import GATHER_MS, Timer, load_checkpoint
from tianzhou.broker.scheduled.timer_stats import TimerStats
from tianzhou.broker.storing import disk_prefetch
from tianzhou.broker.tables.saver import encode_table_steps, load_table
from tianzhou.broker.tables.topics import TopicTable
from tianzhou.clock import Clock
from tianzhou.config.live import LiveSettings
from tianzhou.errors import StoreError
from tianzhou.names import SCHEDULE_TOPIC, TIMER_TOPIC
from tianzhou.remoting.slices import Steps, one_step
from tianzhou.store.message_store import Draft, MessageStore

log = logging.getLogger(__name__)

TOPICS = frozenset((SCHEDULE_TOPIC, TIMER_TOPIC))
"""Where messages wait."""
_HOUR_MS = 3_600_000
_WARM_S = 0.25
_WARM_AHEAD_MS = 1000
_WARMED_A_TIME = 512

Save = Callable[..., Awaitable[bool]]
"""Saves the files it is given, and whatever else has changed."""


class ScheduledMessages:
    """The waiting messages of one broker."""

    def __init__(
        self,
        settings: LiveSettings[BrokerConfig],
        store: MessageStore,
        topics: TopicTable,
        clock: Clock,
        step: CrashPoint = no_crash_point,
        delivered: Delivered = ignore_delivery,
    ) -> None:
        """Take over what a former run saved. Raises StoreError."""
        self._settings = settings
        self._store = store
        self._clock = clock
        self._step = step
        self._topics = topics
        config = settings.config
        folder = config.config_directory
        self._delay_path, self._check_path = folder / "delayOffset.json", folder / "timercheck"
        self.slices = SliceScheduler(lambda: store.log.written)
        """Those whom work that can wait gives way to."""
        self.delays = DelayLevels(
            store, config.delay_levels_ms, step, self._ensure_topic, lambda: self.slices.slice_s,
            delivered,
        )  # fmt: skip
        load_table(self._delay_path, self.delays.load)
        if count := self.delays.catch_up():
            log.info("delay levels: %d messages were delivered after the last save", count)
        self._delay_ticker = Ticker("delayed messages", self.delays.run_slice, clock, self.slices)
        self.timer: Timer | None = None
        if config.timer_wheel_enable:
            self.timer = Timer(
                store,
                config.root_directory / "timer" / "index.sqlite",
                load_checkpoint(self._check_path),
                self._roll_after_ms,
                step,
                self._ensure_topic,
                delivered,
            )
            self._timer_ticker = Ticker("timed messages", self.timer.run_slice, clock, self.slices)
        longest_ms = max(config.delay_levels_ms, default=0)
        if longest_ms >= config.file_reserved_time * _HOUR_MS > 0:
            log.warning(
                "messageDelayLevel: a level of %d h outlives the log (fileReservedTime is %d h), "
                "which loses messages; send them with a time (TIMER_DELIVER_MS) instead",
                longest_ms // _HOUR_MS, config.file_reserved_time,
            )  # fmt: skip

    def _ensure_topic(self, topic: str, queue_id: int) -> None:
        self._topics.restore(topic, queue_id, self._settings.config)

    def _roll_after_ms(self) -> int:
        config = self._settings.config
        return min(config.timer_roll_window_slot * 1000, config.file_reserved_time * _HOUR_MS // 2)

    def encoders(self) -> dict[Path, Callable[[], Steps[bytes]]]:
        """The files to save, and what is in them."""
        found: dict[Path, Callable[[], Steps[bytes]]] = {
            self._delay_path: lambda: encode_table_steps(self.delays.as_file())
        }
        if (one := self.timer) is not None:
            found[self._check_path] = lambda: one_step(lambda: encode_checkpoint(one.check))
        return found

    def timer_checkpoint(self) -> bytes | None:
        """How far timed messages certainly are; None if the broker keeps none."""
        return None if self.timer is None else encode_fields(self.timer.check)

    # -- messages ----------------------------------------------------------------------------------

    def redirect(self, draft: Draft, found: dict[str, str]) -> Draft | None:
        """For the writer: the draft under the topic where it scheduled, None if it need not."""
        instead = self.delays.redirect(draft, found)
        if instead is None:
            config = self._settings.config
            instead = timer_rules.timed(
                draft, found, self._clock(),
                enabled=self.timer is not None, max_delay_s=config.timer_max_delay_sec,
            )  # fmt: skip
            if instead is not None:
                self._step("timer: before the message waits")
        return instead

    def subscribe(self, arrivals: Arrivals) -> None:
        """Learn of the messages that are stored under TOPICS."""
        arrivals.subscribe_topics(TOPICS, self._arrived)

    def _arrived(self, topic: str, _: int, code: int) -> None:
        if topic == SCHEDULE_TOPIC:
            self._delay_ticker.wake(code)
        elif self.timer is not None:
            self._timer_ticker.wake(self._clock() + GATHER_MS)

    def timed_until_ms(self) -> int:
        """Every timed message that was due before this is delivered."""
        now_ms = self._clock()
        return now_ms if self.timer is None else self.timer.delivered_until_ms(now_ms)

    def timer_stats(self) -> TimerStats:
        """How the timer is doing."""
        return TimerStats() if self.timer is None else self.timer.stats(self._clock())

    def runtime_info(self) -> dict[str, str]:
        """How the levels and the timer are doing, as run-time information of RocketMQ has it."""
        timed = self.timer_stats()
        levels = {
            f"scheduleMessageOffset_{level}": f"{at},{end}"
            for level, (at, end) in self.delays.positions().items()
        }
        return levels | timed.as_runtime_info()

    # -- running -----------------------------------------------------------------------------------

    def start(self) -> None:
        self._delay_ticker.start()
        if self.timer is not None:
            self._timer_ticker.start()

    def clock_changed(self) -> None:
        """The clock has jumped."""
        self._delay_ticker.wake_now()
        if self.timer is not None:
            self._timer_ticker.wake_now()

    async def run(self, save: Save) -> None:
        """Save what is certain, time and again."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_warm())
            group.create_task(self._save_delays(save))
            if self.timer is not None:
                group.create_task(self._save_timer(save, self.timer))

    async def _keep_warm(self) -> None:
        """Have what is due next in memory when its turn comes; it may have waited for days."""
        while True:
            await asyncio.sleep(_WARM_S)
            until_ms = self._clock() + _WARM_AHEAD_MS
            try:
                needed = self.delays.upcoming(until_ms, _WARMED_A_TIME)
                if self.timer is not None:
                    needed += self.timer.upcoming(until_ms, _WARMED_A_TIME)
                if needed:
                    await asyncio.to_thread(disk_prefetch.prefetch, self._store, needed)
            except (sqlite3.Error, OSError) as e:
                # Delivery finds out itself what is wrong, and mends it.
                log.debug("waiting messages: not fetched ahead: %s", e)

    async def _save_delays(self, save: Save) -> None:
        while True:
            await asyncio.sleep(self._settings.config.flush_delay_offset_interval / 1000)
            if self.delays.unsaved and await self._settle_delays():
                # A topic that had been forgotten must be known before its message counts as done.
                await save()
                await save(self._delay_path)
                self._step("delay: the progress is saved")

    async def _save_timer(self, save: Save, one: Timer) -> None:
        while True:
            await asyncio.sleep(self._settings.config.timer_flush_interval_ms / 1000)
            try:
                if one.unsaved and await self._settle_timer(one):
                    await save()
                    await save(self._check_path)
                    self._step("timer: the progress is saved")
                    await asyncio.to_thread(one.index.checkpoint)
                    one.index.shorten_log()
            except sqlite3.Error as e:
                # A full disk, or an index that the next turn finds damaged; both can be mended.
                one.unsaved = True
                log.warning("timer index: not saved: %s", e)

    async def _settle_delays(self) -> bool:
        """Whether the present progress is certain now."""
        offsets, log_offset = dict(self.delays.offsets), self._store.end_log_offset
        if not await self._flushed():
            return False
        self.delays.flushed(offsets, self._clock(), log_offset)
        return True

    async def _settle_timer(self, one: Timer) -> bool:
        progress = one.progress(self._clock())
        if not await self._flushed():
            one.unsaved = True
            return False
        one.check = progress
        return True

    async def _flushed(self) -> bool:
        try:
            await asyncio.wrap_future(self._store.flushed(self._store.end_log_offset))
        except StoreError as e:
            log.debug("progress of waiting messages: not saved, %s", e)
            return False
        return True

    async def stop(self) -> None:
        """Deliver nothing more, and have what was delivered on disk, ready to be saved."""
        self._delay_ticker.stop()
        await self._settle_delays()
        if self.timer is not None:
            self._timer_ticker.stop()
            try:
                await self._settle_timer(self.timer)
                self.timer.close()
            except sqlite3.Error as e:
                # The index can be made again; the store behind it must still be closed.
                log.warning("timer index: not closed in good order: %s", e)
