"""Which log files may go, and when writing must stop. Values in, values out.

A file goes when it has not been written to for fileReservedTime hours, at the hours of
deleteWhen, or at any hour once the disk is fuller than diskMaxUsedSpaceRatio. Above the ratio for
forced cleaning files go however young they are, one after the other until the disk is below it, and
above the warning ratio nothing more is written. The newest file never goes.
"""

from dataclasses import dataclass

from tianzhou.store.config import StoreConfig

FILES_A_TIME = 10
"""Files removed in one go at most, so that a mistake in the settings shows before all is gone."""
MANUAL_ROUNDS = 20

_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the space on the disk and the hour ask for."""

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
    """The hours of a text like `04` or `04;16`; what is no hour is left out, as RocketMQ does."""
    return {int(part) for part in text.split(";") if part.strip().isdecimal()}


def expired_count(
    modified_ms: list[int], now_ms: int, config: StoreConfig, verdict: Verdict
) -> int:
    """How many of the oldest files are old enough to go; `modified_ms` of all, oldest first."""
    if not verdict.delete_old:
        return 0
    reserved_ms = config.file_reserved_time * _HOUR_MS
    count = 0
    for modified in modified_ms[: most_at_once(len(modified_ms))]:
        if now_ms - modified < reserved_ms:
            break
        count += 1
    return count


def most_at_once(file_count: int) -> int:
    """How many of so many files may go in one go."""
    return max(min(file_count - 1, FILES_A_TIME), 0)
