"""A planned switch, on the side of the master.

    stop all writers -> the target acknowledges the end of the log -> agree on the HA connection
    -> the target proposes itself, keeping this replica in sync -> a higher epoch is seen

If that takes longer than two seconds, or the target does not follow within two seconds after the
agreement, the master resumes: as long as no other epoch exists it is the master. After the
agreement, and before it proposes itself, the target copies the tables of the master.
"""

import dataclasses
from typing import Final

from tianzhou.ha import replica_facts
from tianzhou.ha.roles.actions import Action, Agree, Ready, Reply, ResumeWriters, StopWriters
from tianzhou.ha.roles.election import step_down
from tianzhou.ha.roles.following import AGAIN_MS, leave_master, save_confirm, stop
from tianzhou.ha.roles.membership import is_current
from tianzhou.ha.roles.reasons import Code, Reason
from tianzhou.ha.roles.role import Handover, Mode, Role, Session, note

CATCH_UP_MS: Final = 2000
AGREED_MS: Final = 2000


def begin(
    role: Role,
    to: int | None,
    cause: str,
    now_ms: int,
    out: list[Action],
    ticket: int | None = None,
) -> Reason | None:
    """Begins a switch. Returns why that is not possible."""
    session = role.session
    if session is None:
        return Reason(Code.NOT_MASTER, f"replica {role.id} is not the master")
    if session.handover is not None:
        text = f"a switch to replica {session.handover.to} is under way"
        return Reason(Code.SWITCHING, text)
    chosen = _best(role, session, now_ms) if to is None else to
    problem = _problem(role, session, chosen, now_ms)
    if problem is None and chosen is not None:
        session.handover = Handover(chosen, cause, now_ms + CATCH_UP_MS, ticket)
        note(role, Reason(Code.SWITCHING, f"hands over to replica {chosen}: {cause}"), out)
        out.append(StopWriters())
    return problem


def _best(role: Role, session: Session, now_ms: int) -> int | None:
    found = [
        each for each in sorted(session.slaves) if _problem(role, session, each, now_ms) is None
    ]
    acknowledged = session.counted.acknowledged
    return max(found, key=lambda each: (acknowledged[each], -each), default=None)


def _problem(role: Role, session: Session, to: int | None, now_ms: int) -> Reason | None:
    if to is None:
        return Reason(Code.REFUSED, "no in-sync replica is connected that may be elected")
    if to == role.id:
        return Reason(Code.REFUSED, f"replica {to} is the master already")
    if to not in session.counted.in_force:
        return Reason(Code.NOT_IN_SYNC, f"replica {to} is not in sync")
    if not is_current(session, to, now_ms):
        return Reason(Code.MEMBER_STALLED, f"replica {to} is not connected or does not keep up")
    known = role.view.replicas.get(to) if role.view else None
    if known is not None and known.value.priority == 0:
        return Reason(Code.PRIORITY_ZERO, f"the brokerElectionPriority of replica {to} is 0")
    return None


def review(role: Role, now_ms: int, out: list[Action]) -> None:
    """Takes the next step of the switch that is under way, takes up a wish, or begins to end."""
    session = role.session
    if session is None:
        return
    handover = session.handover
    if handover is None:
        _take_up_wish(role, session, now_ms, out)
    elif now_ms >= handover.due_ms:
        _resume(role, session, handover, out)
    elif not handover.is_agreed and role.pending is None and _has_caught_up(session, handover):
        agreed = dataclasses.replace(handover, is_agreed=True, due_ms=now_ms + AGREED_MS)
        session.handover = agreed
        out.append(Agree(handover.to, session.epoch))


def _has_caught_up(session: Session, handover: Handover) -> bool:
    """Whether the writers have stopped and the target has all that they stored."""
    acknowledged = session.counted.acknowledged.get(handover.to, 0)
    return handover.end is not None and acknowledged >= handover.end


def _take_up_wish(role: Role, session: Session, now_ms: int, out: list[Action]) -> None:
    wish = role.view.wish if role.view else None
    if wish is None or wish.revision <= role.wish_done or wish.value.epoch != session.epoch:
        return
    if wish.value.switch_to is not None:
        role.wish_done = wish.revision
        problem = begin(role, wish.value.switch_to, f"asked by {wish.value.by}", now_ms, out)
        if problem is not None:
            note(role, problem, out)


def writers_stopped(role: Role, end: int) -> None:
    """Nothing is stored any more: the target has to acknowledge this end."""
    session = role.session
    if session is not None and session.handover is not None:
        session.handover = dataclasses.replace(session.handover, end=end)


def _resume(role: Role, session: Session, handover: Handover, out: list[Action]) -> None:
    session.handover = None
    text = f"replica {handover.to} did not take over in time; replica {role.id} goes on as master"
    reason = Reason(Code.FAILED, text)
    note(role, reason, out, is_alarm=True)
    out.append(ResumeWriters())
    if handover.ticket is not None:
        out.append(Reply(handover.ticket, is_ok=False, reason=reason))
    if role.is_ending:
        end(role, out)


def replaced(role: Role, reason: Reason, out: list[Action]) -> None:
    """A higher epoch exists: the session ends, and with it the switch that led to it."""
    handover = role.session.handover if role.session else None
    step_down(role, reason, out)
    if handover is not None and handover.ticket is not None:
        done = Reason(Code.HANDED_OVER, reason.text)
        out.append(Reply(handover.ticket, is_ok=True, reason=done))
    if role.is_ending:
        end(role, out)


# -- the end of the process ------------------------------------------------------------------------


def stop_asked(role: Role, now_ms: int, out: list[Action]) -> None:
    """SIGTERM: a master hands over first, unless elections are paused."""
    role.is_ending = True
    is_paused = role.state is not None and role.state.paused
    if role.session is None or is_paused or begin(role, None, "the process ends", now_ms, out):
        end(role, out)


def end(role: Role, out: list[Action]) -> None:
    """Nothing keeps the process from ending."""
    reason = Reason(Code.DONE, "the process ends")
    if role.session is not None:
        step_down(role, reason, out)
    if role.followed:
        leave_master(role, out)
    save_confirm(role, role.log.flushed, out)
    role.mode, role.stopped = Mode.STOPPED, role.stopped or reason
    out.append(Ready())


def disk_failed(role: Role, detail: str, *, is_fsync: bool, now_ms: int, out: list[Action]) -> None:
    """The disk failed (R13). Actions were dropped: what they would have done is done anew.

    After a failed fsync the store is unclean: the replica stops, and leaves the set when it starts
    again. So does one that was elected and cannot lead: its lease ends, another one is elected. A
    master that cannot write hands over; if there is none to hand over to it goes on with reads, as
    no other replica could be elected.
    """
    reason = Reason(Code.DISK_FAILED, f"the disk failed: {detail}")
    note(role, reason, out, is_alarm=True)
    role.is_unsaved, role.serve = True, None
    if is_fsync:
        role.facts = replica_facts.of_failed_fsync(role.facts, detail)
    if is_fsync or role.mode is Mode.PROMOTING:
        if role.session is not None or role.mode is Mode.PROMOTING:
            step_down(role, reason, out)
        stop(role, reason, out)
    elif role.session is not None:
        begin(role, None, reason.text, now_ms, out)
    elif role.followed:
        leave_master(role, out)
        role.follow_ms = now_ms + AGAIN_MS
