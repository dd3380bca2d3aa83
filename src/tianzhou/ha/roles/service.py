"""What clients may do: refusals of a master that cannot promise anything (R3, R7, R13).

A master without a fresh lease goes on while the whole counted set is connected and acknowledges:
then no other master can exist. Otherwise it is suspended: it refuses writes at once, and after
three seconds leaves the routes, so that clients look elsewhere.
"""

from typing import Final

from tianzhou.ha.roles.actions import Action, Serve
from tianzhou.ha.roles.membership import MISSING_MS, counted_for_min, is_current
from tianzhou.ha.roles.reasons import Code, Reason
from tianzhou.ha.roles.role import NEVER, Mode, Role, Session

SUSPENDED_REGISTERED_MS: Final = 3000
_FROZEN_MS: Final = 1000
"""A connection that ended during a freeze is noticed within this time."""


def is_lease_fresh(role: Role, now_ms: int) -> bool:
    """Whether others certainly see the own lease."""
    return 3 * (now_ms - role.lease_ms) < 2 * role.settings.lease_ms


def has_lease(role: Role, now_ms: int) -> bool:
    """Whether the own lease may still last."""
    return now_ms - role.lease_ms < role.settings.lease_ms


def refresh(role: Role, now_ms: int, out: list[Action]) -> None:
    """Says what clients may do, if it has changed; not while Lead is under way."""
    if role.mode is Mode.PROMOTING:
        return
    serve = _of_master(role, role.session, now_ms) if role.session else _of_others(role)
    if serve != role.serve:
        role.serve = serve
        out.append(serve)


def _of_others(role: Role) -> Serve:
    epoch = role.state.epoch if role.state else role.facts.highest_epoch
    reason = Reason(Code.NOT_MASTER, f"replica {role.id} is not the master")
    # A store of another group has other messages; whether it is one is known with the first view.
    is_known = role.view is not None and role.untrusted is None
    is_registered = role.id != 0 and role.mode is not Mode.STOPPED and is_known
    return Serve(False, epoch, is_registered, reason)


def _of_master(role: Role, session: Session, now_ms: int) -> Serve:
    is_safe = is_lease_fresh(role, now_ms) or is_whole(session, now_ms)
    if is_safe and now_ms - session.frozen_ms >= _FROZEN_MS:
        session.suspended_ms = None
        return Serve(True, session.epoch, True, _refusal(role, session, now_ms))
    if session.suspended_ms is None:
        session.suspended_ms = now_ms
    is_registered = now_ms - session.suspended_ms < SUSPENDED_REGISTERED_MS
    return Serve(True, session.epoch, is_registered, _SUSPENDED)


_SUSPENDED: Final = Reason(
    Code.SUSPENDED,
    "the lease of this master is not renewed and not all in-sync replicas acknowledge: another "
    "master may have been elected",
)


def is_whole(session: Session, now_ms: int) -> bool:
    """Whether every replica that counts is connected and acknowledges."""
    return all(is_current(session, each, now_ms) for each in session.counted.counted)


def _refusal(role: Role, session: Session, now_ms: int) -> Reason | None:
    if session.handover is not None:
        return Reason(Code.SWITCHING, f"a switch to replica {session.handover.to} is under way")
    present = [
        each
        for each in session.counted.in_force
        if each != role.id and is_current(session, each, now_ms)
    ]
    needed = role.settings.min_in_sync
    found = 1 + counted_for_min(role.view, present)
    if found >= needed:
        return None
    if now_ms - session.began_ms < MISSING_MS and _would_be_enough(role, session):
        text = f"replica {role.id} has just become the master, and its replicas are connecting"
        return Reason(Code.CONNECTING, text)
    return Reason(
        Code.NOT_ENOUGH_IN_SYNC,
        f"in-sync replicas not enough: {found}, minInSyncReplicas is {needed}",
    )


def _would_be_enough(role: Role, session: Session) -> bool:
    """Whether only connections are missing that were not made yet, so that waiting helps."""
    expected = session.counted.in_force - session.gone
    return counted_for_min(role.view, expected) >= role.settings.min_in_sync


# -- freezes (R13) ---------------------------------------------------------------------------------


def frozen(role: Role, now_ms: int) -> None:
    """The event loop did not run for long: nothing is served before the lease was checked."""
    if role.session is not None:
        role.session.frozen_ms = now_ms


def renewed(role: Role, sent_ms: int) -> None:
    """The authority renewed the lease after a request of this time."""
    role.lease_ms = max(role.lease_ms, sent_ms)
    session = role.session
    if session is not None and sent_ms >= session.frozen_ms:
        session.frozen_ms = NEVER
