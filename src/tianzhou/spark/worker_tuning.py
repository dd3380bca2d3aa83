"""Tuning of Spark's Python worker processes: garbage collection and TCP delays.

A worker serves many tasks in sequence and runs a full garbage collection after each. Nearly all
objects are imported code, and scanning them takes longer than many a task: they are frozen once.

A worker receives each task through a socket in two segments. With the defaults of TCP the sender
holds the second, small segment until the first is acknowledged (Nagle), and the receiver delays
the acknowledgement by 40 ms, again longer than many a task: both delays are switched off.
"""

import gc
import os
import socket
import stat
import sys
from typing import Any

_WORKER_MODULES = ("pyspark.daemon", "pyspark.worker", "pyspark.sql.worker.")

_SOCKET_FD_MAX = 16
"""Spark's sockets are among the first file descriptors of a worker."""

_initialized = False


def init_worker() -> None:
    """Exclude all present objects from garbage collection, once, if this is a worker process."""
    global _initialized
    if not _initialized and is_worker():
        _initialized = True
        gc.freeze()


def is_worker() -> bool:
    """Whether Spark started this process for its tasks; a user's program is left alone."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith(_WORKER_MODULES)


class TaskPayload:
    """Base class of objects that Spark sends to its workers with each task."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # This runs when the first segment of a task has arrived, before the wait for the second.
        if is_worker():
            disable_tcp_delays()


def disable_tcp_delays() -> None:
    """Acknowledge received data now, and send without Nagle's delay from now on."""
    quick = getattr(socket, "TCP_QUICKACK", None)  # Linux only; not permanent
    for each in _tcp_sockets():
        with each:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if quick is not None:
                each.setsockopt(socket.IPPROTO_TCP, quick, 1)


def _tcp_sockets() -> list[socket.socket]:
    """Duplicates of the TCP sockets that this process has open."""
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
