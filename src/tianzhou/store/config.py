"""Settings of the store, under RocketMQ's own keys.

FIXED settings are sizes of files: an existing store keeps its sizes; opening it with others is
refused (log) or rebuilds the derived files (queues, index).
"""
# ruff: noqa: RUF009 - setting() makes a field, it does not compute a shared default

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from tianzhou.config.settings import INT32_MAX, Change, setting
from tianzhou.errors import ConfigError
from tianzhou.names import DELAY_LEVELS

ENTRY_BYTES = 20
"""One entry of a consume queue."""


class FlushDiskType(StrEnum):
    """When a message is acknowledged: once written, or once on the disk."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """All settings of a store; the defaults are RocketMQ's."""

    # -- directories -----------------------------------------------------------------------------
    store_path_root_dir: Path = setting(
        Path("~/store"), "directory of checkpoint, lock, abort and the parts below"
    )
    store_path_commit_log: Path | None = setting(None, "log files; default ROOT/commitlog")
    store_path_consume_queue: Path | None = setting(None, "queue files; default ROOT/consumequeue")
    store_path_index: Path | None = setting(None, "index files; default ROOT/index")

    # -- file sizes ------------------------------------------------------------------------------
    mapped_file_size_commit_log: int = setting(
        1024**3, "bytes of a log file",
        change=Change.FIXED, minimum=4096, maximum=INT32_MAX, size=True,
        aliases=("mapedFileSizeCommitLog",),
    )  # fmt: skip
    mapped_file_size_consume_queue: int = setting(
        300_000 * ENTRY_BYTES, "bytes of a queue file, rounded up to whole entries of 20",
        change=Change.FIXED, minimum=ENTRY_BYTES, maximum=INT32_MAX, size=True,
        aliases=("mapedFileSizeConsumeQueue",),
    )  # fmt: skip
    enable_consume_queue_ext: bool = setting(
        False, "write tags code and store time of each message to files beside its queue, too"
    )
    mapped_file_size_consume_queue_ext: int = setting(
        48 * 1024**2, "bytes of such a file",
        change=Change.FIXED, minimum=64, maximum=INT32_MAX, size=True,
    )  # fmt: skip
    max_hash_slot_num: int = setting(
        5_000_000, "hash slots of an index file",
        change=Change.FIXED, minimum=1, maximum=100_000_000,
    )  # fmt: skip
    max_index_num: int = setting(
        5_000_000 * 4, "items of an index file",
        change=Change.FIXED, minimum=2, maximum=100_000_000,
    )  # fmt: skip

    # -- writing ---------------------------------------------------------------------------------
    flush_disk_type: FlushDiskType = setting(
        FlushDiskType.ASYNC_FLUSH, "acknowledge once written, or once on the disk"
    )
    flush_interval_commit_log: int = setting(
        500, "ms between flushes of the log (ASYNC_FLUSH)", minimum=1
    )
    flush_commit_log_least_pages: int = setting(
        4, "pages that must wait for such a flush to happen"
    )
    flush_commit_log_thorough_interval: int = setting(
        10_000, "ms after which the log is flushed however little waits"
    )
    flush_interval_consume_queue: int = setting(1000, "ms between flushes of the queues", minimum=1)
    flush_consume_queue_least_pages: int = setting(
        2, "unflushed pages from which such a flush includes a queue"
    )
    flush_consume_queue_thorough_interval: int = setting(
        60_000, "ms after which every queue and the index are flushed and the checkpoint is written"
    )
    sync_flush_timeout: int = setting(5000, "ms a SYNC_FLUSH send waits for the disk", minimum=1)
    transient_store_pool_enable: bool = setting(
        False,
        "write into locked memory first and commit it to the log file later (ASYNC_FLUSH only); a "
        "killed process loses what was not committed",
    )
    transient_store_pool_size: int = setting(
        5, "buffers of that memory, each as large as a log file", minimum=1
    )
    commit_interval_commit_log: int = setting(200, "ms between commits", minimum=1)
    commit_commit_log_least_pages: int = setting(4, "pages that must wait for a commit to happen")
    commit_commit_log_thorough_interval: int = setting(
        200, "ms after which a commit happens however little waits"
    )
    warm_ahead_bytes: int = setting(
        32 * 1024**2,
        "bytes of the log made ready ahead of the writer; 0 switches it off",
        size=True,
    )
    resident_log_bytes: int = setting(
        64 * 1024**2,
        "bytes at the end of the log that stay in this process's memory; the rest is in the "
        "system's cache",
        size=True,
    )
    message_index_enable: bool = setting(True, "build the index of keys")
    max_message_size: int = setting(
        4 * 1024**2,
        "bytes of a body at most",
        change=Change.LIVE,
        minimum=1,
        size=True,
        maximum=INT32_MAX,
    )
    message_delay_level: str = setting(DELAY_LEVELS, "the delay of each level, from level 1 on")

    # -- reading ---------------------------------------------------------------------------------
    max_transfer_bytes_on_message_in_memory: int = setting(
        256 * 1024,
        "bytes one read returns from memory",
        change=Change.LIVE,
        size=True,
        minimum=1,
        maximum=64 * 1024**2,
    )
    max_transfer_count_on_message_in_memory: int = setting(
        32, "messages one read returns from memory", change=Change.LIVE, minimum=1, maximum=100_000
    )
    max_transfer_bytes_on_message_in_disk: int = setting(
        64 * 1024,
        "bytes one read returns of messages that come from disk",
        change=Change.LIVE,
        size=True,
        minimum=1,
        maximum=64 * 1024**2,
    )
    max_transfer_count_on_message_in_disk: int = setting(
        8,
        "messages one read returns that come from disk",
        change=Change.LIVE,
        minimum=1,
        maximum=100_000,
    )
    access_message_in_memory_max_ratio: int = setting(
        40, "percent of physical memory assumed to hold the newest messages; older: use a slave",
        change=Change.LIVE, maximum=100,
    )  # fmt: skip
    max_msgs_num_batch: int = setting(
        64,
        "messages a query by key returns at most",
        change=Change.LIVE,
        minimum=1,
        maximum=100_000,
    )
    mapped_queue_files_max: int = setting(
        16_384, "queue files mapped at a time; the rest are mapped when needed", minimum=16
    )

    # -- recovery --------------------------------------------------------------------------------
    check_crc_on_recover: bool = setting(
        True, "check the body of each message that recovery walks over", key="checkCRCOnRecover"
    )

    # -- retention -------------------------------------------------------------------------------
    file_reserved_time: int = setting(
        72, "hours until a log file expires", change=Change.ADMIN, maximum=INT32_MAX
    )
    delete_when: str = setting(
        "04", "hours of the day at which old files are deleted, separated by ;", change=Change.ADMIN
    )
    disk_max_used_space_ratio: int = setting(
        75, "percent of the disk from which old files are deleted at any hour",
        change=Change.ADMIN, minimum=10, maximum=95,
    )  # fmt: skip
    disk_space_clean_forcibly_ratio: int = setting(
        85, "percent of the disk from which files are deleted however young",
        change=Change.ADMIN, maximum=100,
    )  # fmt: skip
    disk_space_warning_level_ratio: int = setting(
        90, "percent of the disk from which writes are refused", change=Change.ADMIN, maximum=100
    )
    clean_file_forcibly_enable: bool = setting(
        True, "allow the deletion of young files when the disk is nearly full", change=Change.ADMIN
    )
    clean_resource_interval: int = setting(
        10_000, "ms between checks of the age of files and the free space", minimum=10
    )

    @property
    def root_directory(self) -> Path:
        return self.store_path_root_dir.expanduser()

    @property
    def log_directory(self) -> Path:
        return self.store_path_commit_log or self.root_directory / "commitlog"

    @property
    def queue_directory(self) -> Path:
        return self.store_path_consume_queue or self.root_directory / "consumequeue"

    @property
    def queue_ext_directory(self) -> Path:
        return self.root_directory / "consumequeue_ext"

    @property
    def index_directory(self) -> Path:
        return self.store_path_index or self.root_directory / "index"

    @property
    def is_staged(self) -> bool:
        """Whether messages wait in memory before they are in the log file."""
        return (
            self.transient_store_pool_enable and self.flush_disk_type is FlushDiskType.ASYNC_FLUSH
        )

    @property
    def queue_file_bytes(self) -> int:
        return -(-self.mapped_file_size_consume_queue // ENTRY_BYTES) * ENTRY_BYTES

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        return parse_delay_levels(self.message_delay_level)


_DELAY_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@lru_cache(maxsize=16)
def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Milliseconds of each level of a text like `1s 5s 1m 2h`."""
    try:
        return tuple(int(part[:-1]) * _DELAY_UNITS_MS[part[-1]] for part in text.split())
    except (KeyError, ValueError):
        raise ConfigError(
            f"messageDelayLevel: {text!r} is not a list of delays such as 1s 5s 1m 2h 1d"
        ) from None
