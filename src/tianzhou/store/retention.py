"""Retention: which log files are deleted, and when appends are refused.

A file expires when it was not written for fileReservedTime hours. It is deleted at the hours of
deleteWhen, or at any hour once the disk is fuller than diskMaxUsedSpaceRatio. Above
diskSpaceCleanForciblyRatio files are deleted whatever their age, one by one until the disk is below
it; above diskSpaceWarningLevelRatio appends are refused. The newest file is never deleted.

The age of files is elapsed time, independent of changes of the wall clock: see `FileAges`.
"""

import logging
from dataclasses import dataclass

from tianzhou.clock import Ages, Clock
from tianzhou.store.config import StoreConfig

log = logging.getLogger(__name__)

FILES_PER_ROUND = 10
"""The most files removed at a time, so that a wrong setting is noticed before all are gone."""
MANUAL_ROUNDS = 20

_HOUR_MS = 3_600_000
HOLD_MS = 24 * _HOUR_MS
"""For this long after a start the time since the last run does not count."""
_GAP_MS = _HOUR_MS
_JUMP_MS = 60_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the used disk space and the hour require."""

    refuse_writes: bool
    delete_old: bool
    delete_young: bool


def judge(config: StoreConfig, used_ratio: float, hour: int, *, manual: bool = False) -> Verdict:
    """What to do now; `hour` is the local hour of the day."""
    used_percent = used_ratio * 100
    short = used_percent > config.disk_max_used_space_ratio
    return Verdict(
        refuse_writes=used_percent > config.disk_space_warning_level_ratio,
        delete_old=short or manual or hour in delete_hours(config.delete_when),
        delete_young=config.clean_file_forcibly_enable
        and used_percent > config.disk_space_clean_forcibly_ratio,
    )


def delete_hours(text: str) -> set[int]:
    """The hours of a text like `04` or `04;16`; other parts are ignored, as in RocketMQ."""
    return {int(part) for part in text.split(";") if part.strip().isdecimal()}


def expired_count(
    modified_ms: list[int], now_ms: int, config: StoreConfig, verdict: Verdict
) -> int:
    """How many of the oldest files have expired; `modified_ms` of all files, oldest first."""
    if not verdict.delete_old:
        return 0
    reserved_ms = config.file_reserved_time * _HOUR_MS
    count = 0
    for modified in modified_ms[: removable_count(len(modified_ms))]:
        if now_ms - modified < reserved_ms:
            break
        count += 1
    return count


class FileAges:
    """The ages of files, independent of changes of the wall clock.

    While the store is open a jump of the clock changes no age. Across a restart a jump cannot be
    distinguished from elapsed time: if the last run ended an hour or more ago by the clock, that
    time counts only after the store has been open for a day (`HOLD_MS`).
    """

    def __init__(self, wall: Clock, steady: Clock, last_alive_ms: int | None) -> None:
        self._wall = wall
        self._steady = steady
        self._began_ms = steady()
        self._ages = Ages(wall, steady)
        self._ahead_ms = wall() - self._began_ms
        gap_ms = 0 if last_alive_ms is None else wall() - last_alive_ms
        self._held_ms = gap_ms if gap_ms >= _GAP_MS else 0
        if self._held_ms:
            log.info(
                "store: the last run ended %d h ago by the clock; for %d h that does not make "
                "files older (deleteExpiredCommitLog removes them at once)",
                self._held_ms // _HOUR_MS, HOLD_MS // _HOUR_MS,
            )  # fmt: skip

    def ages_ms(self, modified_ms: list[int], *, by_wall: bool = False) -> list[int]:
        """The ages of files by their modification times; with `by_wall` by the wall clock."""
        self._update()
        if by_wall:
            now_ms = self._wall()
            return [now_ms - each for each in modified_ms]
        held_ms = self._held_ms if self._steady() - self._began_ms < HOLD_MS else 0
        return [self._ages.age_ms(each) - held_ms for each in modified_ms]

    def _update(self) -> None:
        self._ages.detect_jump()
        ahead_ms = self._wall() - self._steady()
        if abs(jump_ms := ahead_ms - self._ahead_ms) >= _JUMP_MS:
            log.warning(
                "store: the clock was set %s by %d s; the ages of files do not change, they expire "
                "by elapsed time (deleteExpiredCommitLog uses the wall clock)",
                "forward" if jump_ms > 0 else "back", abs(jump_ms) // 1000,
            )  # fmt: skip
        self._ahead_ms = ahead_ms


def removable_count(file_count: int) -> int:
    """How many of `file_count` files may be removed at a time."""
    return max(min(file_count - 1, FILES_PER_ROUND), 0)
