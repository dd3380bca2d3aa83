"""The Python processes that Spark starts: what they should do once, before their first task.

Such a process serves many tasks, one after the other, and after each it has the interpreter look at
every object for garbage. Nearly all of these are code that was imported and stays: looking at it
takes longer than many a task does.

It is handed each task through a socket, in two pieces. Both ends of it wait, as TCP does unless it
is told otherwise: the one with a small piece until the piece before has been acknowledged, the
other 40 ms with acknowledging. That is again longer than many a task takes.
"""

import gc
import os
import socket
import stat
import sys
from typing import Any

_WORKER_MODULES = ("pyspark.daemon", "pyspark.worker", "pyspark.sql.worker.")

_SOCKET_FD_MAX = 16
"""Spark's own are among the first that a process opens."""

_initialized = False


def init_worker() -> None:
    """Leave what is there now out of all collections of garbage to come, if this is Spark's."""
    global _initialized
    if not _initialized and is_worker():
        _initialized = True
        gc.freeze()


def is_worker() -> bool:
    """Whether Spark has started this process for its tasks; a user's program is none of ours."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith(_WORKER_MODULES)


class TaskPayload:
    """Base of what Spark sends to its processes with each task."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # The first piece of the task is here, and we know of it before the second is waited for.
        if is_worker():
            disable_tcp_delays()


def disable_tcp_delays() -> None:
    """Acknowledge what has come on the sockets of this process; write without delay from now on."""
    quick = getattr(socket, "TCP_QUICKACK", None)  # of Linux; it holds for this time only
    for each in _tcp_sockets():
        with each:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if quick is not None:
                each.setsockopt(socket.IPPROTO_TCP, quick, 1)


def _tcp_sockets() -> list[socket.socket]:
    """The connections that this process has open, doubled."""
    found: list[socket.socket] = []
    for number in range(3, _SOCKET_FD_MAX):
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
        except OSError:
            continue  # not open
        each = socket.socket(fileno=os.dup(number))
        if each.family in (socket.AF_INET, socket.AF_INET6) and each.type == socket.SOCK_STREAM:
            found.append(each)
        else:
            each.close()
    return found
