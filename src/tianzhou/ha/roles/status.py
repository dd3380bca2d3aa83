"""What operators see of a replica's role, for `tianzhou broker group`, metrics and health."""

from dataclasses import dataclass

from tianzhou.ha.roles.membership import is_current
from tianzhou.ha.roles.reasons import Reason
from tianzhou.ha.roles.role import Mode, Role
from tianzhou.ha.roles.service import has_lease, is_lease_fresh


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaveStatus:
    """A slave as its master sees it."""

    id: int
    is_connected: bool
    is_current: bool
    """It acknowledges what was sent to it."""
    is_in_sync: bool
    acknowledged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """One replica."""

    id: int
    mode: Mode
    epoch: int
    """Of the session it leads or follows; 0: none."""
    confirm: int
    is_lease_fresh: bool
    has_lease: bool
    lease_age_ms: int
    standing: Reason | None
    """Why it is no candidate, or why it stands."""
    refusal: Reason | None
    """Why writes are refused."""
    untrusted: Reason | None
    """Why the authority's state is not followed."""
    stopped: Reason | None
    unclean: str
    slaves: tuple[SlaveStatus, ...]
    """Of a master: members and connected slaves, ascending."""
    reasons: tuple[Reason, ...]
    """The last decisions, newest last."""


def explain(role: Role, now_ms: int) -> Status:
    """The present role and the reasons of it."""
    session = role.session
    return Status(
        id=role.id,
        mode=role.mode,
        epoch=session.epoch if session else role.followed_session,
        confirm=session.counted.confirm if session else role.confirm,
        is_lease_fresh=is_lease_fresh(role, now_ms),
        has_lease=has_lease(role, now_ms),
        lease_age_ms=now_ms - role.lease_ms,
        standing=role.standing,
        refusal=role.serve.refusal if role.serve else None,
        untrusted=role.untrusted,
        stopped=role.stopped,
        unclean=role.facts.unclean,
        slaves=_slaves(role, now_ms),
        reasons=role.reasons,
    )


def _slaves(role: Role, now_ms: int) -> tuple[SlaveStatus, ...]:
    session = role.session
    if session is None:
        return ()
    known = (session.counted.in_force | session.slaves.keys()) - {role.id}
    return tuple(
        SlaveStatus(
            id=each,
            is_connected=each in session.slaves,
            is_current=is_current(session, each, now_ms),
            is_in_sync=each in session.counted.in_force,
            acknowledged=session.counted.acknowledged.get(each, 0),
        )
        for each in sorted(known)
    )
