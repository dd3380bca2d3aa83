"""The limit of file descriptors of this process, and the reserve for files.

Sockets and files share one limit (RLIMIT_NOFILE). A server raises its soft limit to the hard limit
when it starts, and rejects connections that would leave fewer descriptors than the reserve: without
descriptors for its files the store cannot write.
"""

import logging
import resource

log = logging.getLogger(__name__)

_FEW = 4096
_RESERVE_MIN = 64
"""Enough for a broker with a few topics; of a very small limit, files get a quarter."""
_RESERVE_MAX = 66_560
"""Four for each queue file that may be mapped by default (16,384), and 1,024 more."""
_ENDLESS = 2**31 - 1


def descriptor_limit() -> int:
    """The maximum number of open descriptors of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ENDLESS if soft == resource.RLIM_INFINITY else soft


def reserved_descriptors() -> int:
    """The number of descriptors reserved for files."""
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
