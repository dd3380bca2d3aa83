"""The kinds of jobs, by the name in their rows."""

from collections.abc import Mapping

from tianzhou.console.jobs import copy, doctor, export, resend
from tianzhou.console.jobs.worker import Kind

KINDS: Mapping[str, Kind] = {
    "resend": resend.run,
    "export": export.run,
    "copy": copy.run,
    "doctor": doctor.run,
}
