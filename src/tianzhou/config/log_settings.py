"""The log settings of a server, part of its configuration; all are Tianzhou's own."""
# ruff: noqa: RUF009 - setting() makes a field, it does not compute a shared default

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tianzhou.config.settings import setting


class LogLevel(StrEnum):
    """Log levels."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


# Without slots: servers inherit from several classes of settings, and only one may have them.
@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """Destination and format of the log."""

    log_level: LogLevel = setting(
        LogLevel.INFO, "what is logged: debug, info, warning or error (Tianzhou's)"
    )
    log_file: Path | None = setting(
        None, "log into this file and errors to standard error, too; all there if not given "
        "(Tianzhou's)"
    )  # fmt: skip
    log_json: bool = setting(False, "log one JSON object a line, for programs (Tianzhou's)")
    log_file_size: int = setting(
        64 * 1024 * 1024, "bytes after which a new log file is begun (Tianzhou's)", minimum=4096,
        size=True,
    )  # fmt: skip
    log_file_count: int = setting(
        10, "log files that are kept, the current one included (Tianzhou's)", minimum=2,
        maximum=1000,
    )  # fmt: skip
