"""The identity of this process: its address, its client ids, and the unique ids of its messages.

A client id is "address@instance" or "address@instance@unit". The instance is the process id and a
number that differs between hubs, unless the program sets a name.

A unique id (UNIQ_KEY) has the fields of `protocol/records/message_id`. Ids of one process differ by
time and counter; a forked child gets another process id and hash.
"""

import os
import secrets
import socket
import time
from datetime import datetime
from itertools import count, islice

from tianzhou.client.settings import DEFAULT_INSTANCE, ClientSettings
from tianzhou.protocol.records.message_id import UniqueId, encode_unique_id

# An address of the documentation network: nothing is sent, the system only looks up the route.
_REMOTE_ADDRESS = ("192.0.2.1", 9)
_LOOPBACK = "127.0.0.1"
_STEP_MAX = 0x8000
_HEX = [f"{number:02X}" for number in range(256)]


def local_address() -> str:
    """The address of this machine on its network; the loopback address if it has none."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(_REMOTE_ADDRESS)
            return str(probe.getsockname()[0])
    except OSError:
        return _LOOPBACK


def new_client_id(settings: ClientSettings) -> str:
    """The id under which brokers know one hub."""
    instance = settings.instance_name
    if instance == DEFAULT_INSTANCE:
        instance = f"{os.getpid()}#{time.monotonic_ns()}"
    parts = [settings.client_ip or local_address(), instance]
    if settings.unit_name:
        parts.append(settings.unit_name)
    return "@".join(parts)


class UniqueIds:
    """Makes ids that no other process makes, and no other call in this one.

    The counter has 16 bits, so 65,536 ids may be made within a millisecond.
    """

    __slots__ = (
        "_counter", "_month_end_ms", "_month_start_ms", "_now_ms", "_prefix", "_start",
    )  # fmt: skip

    def __init__(self) -> None:
        self.renew()

    def next(self) -> str:
        """A new id."""
        now_ms = time.time_ns() // 1_000_000
        if now_ms != self._now_ms:
            self._set_time(now_ms)
        at = next(self._counter)
        return f"{self._start}{_HEX[at >> 8 & 0xFF]}{_HEX[at & 0xFF]}"

    def next_many(self, number: int) -> list[str]:
        """A number of new ids, cheaper than one by one."""
        now_ms = time.time_ns() // 1_000_000
        if now_ms != self._now_ms:
            self._set_time(now_ms)
        made: list[str] = []
        while True:
            start, wanted = self._start, min(number - len(made), _STEP_MAX)
            made += [
                f"{start}{_HEX[at >> 8 & 0xFF]}{_HEX[at & 0xFF]}"
                for at in islice(self._counter, wanted)
            ]
            if len(made) == number:
                return made
            # The counter must not wrap within a millisecond, so the next ids get another one.
            self._set_time(self._now_ms + 1)

    def renew(self) -> None:
        """Begin again, as a forked child must."""
        parts = UniqueId(local_address(), os.getpid(), secrets.randbits(32), 0, 0)
        self._prefix = encode_unique_id(parts)[:-12]
        self._counter = count()
        self._month_end_ms = 0
        self._set_time(time.time_ns() // 1_000_000)

    def _set_time(self, now_ms: int) -> None:
        """Start another millisecond: all but the counter changes."""
        self._now_ms = now_ms
        if now_ms >= self._month_end_ms:
            self._set_month(now_ms)
        # A clock that was set back before the month's start must not give a negative span.
        span_ms = max(now_ms - self._month_start_ms, 0)
        self._start = f"{self._prefix}{span_ms:08X}"

    def _set_month(self, now_ms: int) -> None:
        # In local time, as in the Java client; its tools decode the time from the id that way.
        now = datetime.fromtimestamp(now_ms / 1000).astimezone()
        start = datetime(now.year, now.month, 1).astimezone()
        following = datetime(now.year + now.month // 12, now.month % 12 + 1, 1).astimezone()
        self._month_start_ms = int(start.timestamp() * 1000)
        self._month_end_ms = int(following.timestamp() * 1000)


unique_ids = UniqueIds()
"""The ids of this process."""

if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=unique_ids.renew)
