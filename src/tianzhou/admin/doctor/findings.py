"""Findings of a diagnosis."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check on one subject."""

    level: Level
    check: str
    subject: str
    what: str
    advice: str = ""
