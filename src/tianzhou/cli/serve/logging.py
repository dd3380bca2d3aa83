"""The log of a server: text or JSON lines, on standard error or in rotating files.

    2026-01-31 12:00:00,000 WARNING tianzhou.broker.workers - slow request: SEND_MESSAGE_V2 ...
    {"time": "2026-01-31T12:00:00.000+00:00", "level": "WARNING",
     "logger": "tianzhou.broker.workers",
     "message": "slow request: ...", "code": 310, "took_ms": 1200}

Values passed as `extra` become fields of the JSON object. A file that has reached its size becomes
NAME.1, NAME.1 becomes NAME.2, and the oldest is removed. Line breaks in messages are escaped, so
that a message cannot forge a log line.
"""

import json
import logging
import sys
from argparse import ArgumentParser, Namespace
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from typing import Any

from tianzhou.config.log_settings import LogLevel, LogSettings
from tianzhou.config.settings import Given
from tianzhou.errors import ConfigError

_TEXT = "%(asctime)s %(levelname)s %(name)s - %(message)s"
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes of every record; the rest was passed as `extra`."""
_BREAKS = {ord("\n"): "\\n", ord("\r"): "\\r", 0x85: "\\x85", 0x2028: "\\u2028", 0x2029: "\\u2029"}
_JSON_BREAKS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}
"""JSON does not escape these, and some readers break lines at them."""
_FLAGS = {
    "log_level": "logLevel",
    "log_file": "logFile",
    "log_json": "logJson",
    "log_file_size": "logFileSize",
    "log_file_count": "logFileCount",
}


class TextLines(logging.Formatter):
    """One line per record; a traceback follows on its own lines."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = record.message.translate(_BREAKS)
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    """One JSON object per line, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC)
        entry: dict[str, Any] = {
            "time": when.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in vars(record).items():
            if name not in _OWN:
                # A field of the caller does not replace a standard one.
                entry[f"_{name}" if name in entry else name] = value
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str).translate(_JSON_BREAKS)


def set_up(settings: LogSettings) -> None:
    """Configure logging. Raises ConfigError if the file cannot be written."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        handler.close()
    for handler in _handlers(settings):
        handler.setFormatter(JsonLines() if settings.log_json else TextLines())
        root.addHandler(handler)
    root.setLevel(settings.log_level.upper())


def _handlers(settings: LogSettings) -> list[logging.Handler]:
    screen = logging.StreamHandler(sys.stderr)
    if settings.log_file is None:
        return [screen]
    screen.setLevel(logging.ERROR)
    try:
        settings.log_file.parent.mkdir(parents=True, exist_ok=True)
        file = RotatingFileHandler(
            settings.log_file,
            maxBytes=settings.log_file_size,
            backupCount=settings.log_file_count - 1,
            encoding="utf-8",
            errors="backslashreplace",
        )
    except OSError as e:
        raise ConfigError(f"logFile {settings.log_file} cannot be written: {e}") from e
    return [screen, file]


# -- flags -----------------------------------------------------------------------------------------


def add_flags(parser: ArgumentParser, default_level: LogLevel = LogLevel.INFO) -> None:
    """Add the logging flags of every server."""
    add = parser.add_argument
    add("--log-level", choices=[each.value for each in LogLevel],
        help=f"log level, {default_level} by default (logLevel)")  # fmt: skip
    add("--log-file", metavar="FILE",
        help="log to FILE; only errors go to standard error (logFile)")  # fmt: skip
    add("--log-json", action="store_const", const="true", help="log JSON lines (logJson)")
    add("--log-file-size", metavar="SIZE",
        help="size at which files rotate, 64M by default (logFileSize)")  # fmt: skip
    add("--log-file-count", metavar="N", help="number of files, 10 by default (logFileCount)")


def given_by(options: Namespace) -> list[Given]:
    """The settings given by flags."""
    return [
        Given(key, getattr(options, name), f"flag --{name.replace('_', '-')}")
        for name, key in _FLAGS.items()
        if getattr(options, name) is not None
    ]
