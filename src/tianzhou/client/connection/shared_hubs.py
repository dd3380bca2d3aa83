"""The hubs of this process: one for each event loop and settings, shared by all clients.

`acquire` counts the users of a hub, and the last `Hub.release` stops it: no task and no socket is
left. A forked child never uses the hubs of its parent.
"""

import asyncio
import os

from tianzhou.client.connection.hub import Hub
from tianzhou.client.settings import DEFAULT_INSTANCE, ClientSettings
from tianzhou.errors import ConfigError

_hubs: list[Hub] = []
_abandoned: list[list[Hub]] = []


def acquire(settings: ClientSettings, consumer_group: str | None = None) -> Hub:
    """The hub of the running event loop for these settings; each call needs its `release`.

    A consumer names its group (as on the wire): two consumers of a group get different hubs, since
    brokers identify members by their client ids. Raises ConfigError.
    """
    loop = asyncio.get_running_loop()
    wanted = settings.shared()
    for hub in _hubs:
        if hub.settings != wanted or not _belongs(hub, loop):
            continue
        if consumer_group is None or consumer_group not in hub.reserved_groups:
            break
        if wanted.instance_name != DEFAULT_INSTANCE:
            raise ConfigError(
                f"group {consumer_group}: instance {wanted.instance_name} has a consumer of it in "
                "this process already; give the second one another instance_name"
            )
    else:
        hub = Hub(wanted, _forget)
        _hubs.append(hub)
    hub.user_count += 1
    if consumer_group is not None:
        hub.reserved_groups.add(consumer_group)
    return hub


def hubs_of(loop: asyncio.AbstractEventLoop) -> list[Hub]:
    """The hubs that run on an event loop."""
    return [hub for hub in _hubs if _belongs(hub, loop)]


def _belongs(hub: Hub, loop: asyncio.AbstractEventLoop) -> bool:
    return hub.loop is loop and not hub.closed


def _forget(hub: Hub) -> None:
    if hub in _hubs:
        _hubs.remove(hub)
    # Loops that ended without closing their clients leave nothing to share.
    _hubs[:] = [other for other in _hubs if not other.loop.is_closed()]


def _abandon() -> None:
    """Leave the hubs to the parent process.

    They stay referenced: destroying them would remove the parent's sockets from the poll set
    that both processes share.
    """
    _abandoned.append(_hubs.copy())
    _hubs.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_abandon)
