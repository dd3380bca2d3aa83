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
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from typing import Any

from tianzhou.config.log_settings import LogSettings
from tianzhou.errors import ConfigError

_TEXT = "%(asctime)s %(levelname)s %(name)s - %(message)s"
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes of every record; the rest was passed as `extra`."""
_BREAKS = {ord("\n"): "\\n", ord("\r"): "\\r", 0x85: "\\x85", 0x2028: "\\u2028", 0x2029: "\\u2029"}
_JSON_BREAKS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}
"""JSON does not escape these, and some readers break lines at them."""


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
