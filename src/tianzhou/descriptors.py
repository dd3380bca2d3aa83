"""File descriptors of this process: how many there may be, and how many connections leave alone.

Sockets and files come out of one budget (RLIMIT_NOFILE). A server raises its soft limit to the hard
one when it starts, and takes no connection that would leave fewer descriptors than the reserve:
those belong to the files of the store, whose absence would stop all writing.
"""

import logging
import resource

log = logging.getLogger(__name__)

_FEW = 4096
_RESERVE_MIN = 64
"""What a broker with a few topics needs; a very small limit is shared."""
_RESERVE_MAX = 66_560
"""Four for each queue file that may be mapped by default (16,384), and 1,024 more."""
_ENDLESS = 2**31 - 1


def descriptor_limit() -> int:
    """How many descriptors this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ENDLESS if soft == resource.RLIM_INFINITY else soft


def reserved_descriptors() -> int:
    """How many of them connections leave to files."""
    limit = descriptor_limit()
    few = min(limit, _FEW)
    reserve = min(max(few // 16, _RESERVE_MIN), few // 4) + max(limit - _FEW, 0) // 2
    return min(reserve, _RESERVE_MAX)


def raise_descriptor_limit() -> None:
    """Raise the soft limit to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as e:
        log.warning("open files: the limit stays %d, raising it to %d failed: %s", soft, hard, e)


def log_descriptor_limit() -> None:
    """Log how many descriptors there are for connections and for files."""
    log.info(
        "open files: at most %d, %d of them reserved for the store's files",
        descriptor_limit(), reserved_descriptors(),
    )  # fmt: skip
