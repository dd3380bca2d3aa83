"""Following a master: which one, up to where the logs agree, and what is cut (R9).

A slave follows only a master whose epoch is not below any that it knows: the one in the state, that
of its own newest entry, and its followed epoch. Before its first report it saves that epoch and
cuts what the master does not have; never below a confirm offset that it saw.
"""

from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from tianzhou.ha.epochs import IMPLIED, Epochs, consistent_point
from tianzhou.ha.roles.actions import Action, Follow, OpenStream, Stop, StopFollowing, Truncate
from tianzhou.ha.roles.events import MasterHeard, MasterOffered
from tianzhou.ha.roles.facts import LogFacts
from tianzhou.ha.roles.reasons import Code, Reason
from tianzhou.ha.roles.role import Mode, Role, note, save

AGAIN_MS: Final = 1000
CONFIRM_SAVED_MS: Final = 10_000


# -- which one -------------------------------------------------------------------------------------


def review(role: Role, now_ms: int, out: list[Action]) -> None:
    """Begins to follow the master of the view, or ends to follow another one."""
    master, addr = wanted(role)
    is_outdated = bool(role.followed_session) and role.followed_session < least_epoch(role)
    if role.followed and (role.followed != master or role.followed_addr != addr or is_outdated):
        leave_master(role, out)
    if master and not role.followed and now_ms >= role.follow_ms:
        role.followed, role.followed_addr = master, addr
        out.append(Follow(master, addr))


def wanted(role: Role) -> tuple[int, str]:
    """The master to follow and its address; 0: none.

    A replica that has not reached the authority follows only the one that it followed last. With
    a state that is not trusted a replica stays where it is.
    """
    if role.facts.unclean:
        return 0, ""
    if role.untrusted:
        return role.followed, role.followed_addr
    if role.view is None:
        return role.facts.master, role.facts.master_addr
    state = role.view.state
    master = state.master if state else None
    if master is None or master == role.id or master not in role.view.replicas:
        return 0, ""
    return master, role.view.replicas[master].value.addr


def least_epoch(role: Role) -> int:
    """No master of a smaller epoch is followed (R9)."""
    state = role.state
    known = role.facts.highest_epoch if state is None else state.epoch
    return max(known, role.log.last_epoch, role.facts.followed_epoch)


def leave_master(role: Role, out: list[Action]) -> None:
    """Closes the connection to the master; nothing is reported after it."""
    role.followed, role.followed_addr, role.followed_session = 0, "", 0
    role.asked_ms = None
    out.append(StopFollowing())


def disconnected(role: Role) -> None:
    """The connection to the master ended; the caller tries again."""
    role.followed_session = 0
    role.asked_ms = None


# -- an offer --------------------------------------------------------------------------------------


def offered(role: Role, event: MasterOffered, now_ms: int, out: list[Action]) -> None:
    """The master answered the hello: refuse it, or adapt the log and go on."""
    if role.mode is not Mode.SLAVE or event.master != role.followed:
        return
    role.log = event.log
    if event.epoch < least_epoch(role):
        text = f"replica {event.master} leads epoch {event.epoch}, {least_epoch(role)} is known"
        note(role, Reason(Code.HIGHER_EPOCH, text), out)
        leave_master(role, out)
        role.follow_ms = now_ms + AGAIN_MS
        return
    cut = cut_for(event.log, event.epochs, event.end)
    if cut is not None and role.untrusted:
        note(role, role.untrusted, out, is_alarm=True)
        leave_master(role, out)
        role.follow_ms = now_ms + AGAIN_MS
        return
    to = event.log.end if cut is None else cut.to
    if to < role.confirm:
        role.diverged = to
        stop(role, below_confirmed(role, event, to), out)
        return
    accept(role, event, cut, now_ms, out)


def accept(
    role: Role, event: MasterOffered, cut: "Cut | None", now_ms: int, out: list[Action]
) -> None:
    """Follows the master that made an offer: saves its epoch, cuts, and only then reports."""
    facts = replace(
        role.facts,
        followed_epoch=max(role.facts.followed_epoch, event.epoch),
        master=event.master,
        master_addr=role.followed_addr,
    )
    save(role, facts, out)
    if cut is not None:
        role.log = LogFacts(cut.to, min(event.log.flushed, cut.to), cut.epochs, event.log.first)
        out.append(Truncate(cut.to, cut.epochs))
    role.followed_session = role.last_session = event.epoch
    role.diverged = None
    role.heard_ms = now_ms
    role.refused_by = 0
    out.append(OpenStream(event.epoch))


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a log is cut, and the entries that remain."""

    to: int
    epochs: Epochs


def cut_for(own: LogFacts, epochs: Epochs, end: int) -> Cut | None:
    """What must be cut from the own log to make it the beginning of a master's; None: nothing.

    Own entries behind the newest common one are cut even if nothing was written in them.
    """
    to = own.end if own.is_empty else consistent_point(own.epochs, own.end, epochs, end)
    theirs = {IMPLIED, *epochs}
    common = max(each for each in (IMPLIED, *own.epochs) if each in theirs)
    kept = tuple(each for each in own.epochs if each.number <= common.number)
    return None if to >= own.end and kept == own.epochs else Cut(to, kept)


def below_confirmed(role: Role, event: MasterOffered, to: int) -> Reason:
    """The text for a replica that would have to cut confirmed messages."""
    return Reason(
        Code.BELOW_CONFIRMED,
        f"the logs of this replica and of the master {event.master} are equal up to {to}, but "
        f"messages up to {role.confirm} were confirmed here: the master was elected by force, or "
        "a store was replaced; save what you want to keep, then run `tianzhou broker resync` for "
        f"replica {role.id}",
    )


def stop(role: Role, reason: Reason, out: list[Action]) -> None:
    """Takes no part any more until an operator acts."""
    if role.followed:
        leave_master(role, out)
    role.mode, role.stopped = Mode.STOPPED, reason
    note(role, reason, out, is_alarm=True)
    out.append(Stop(reason))


# -- while it follows ------------------------------------------------------------------------------


def heard(role: Role, event: MasterHeard, now_ms: int, out: list[Action]) -> None:
    """The master is well, and has confirmed up to some offset."""
    if not role.followed_session:
        return
    role.heard_ms = now_ms
    role.confirm = max(role.confirm, min(event.confirm, event.end))
    if now_ms - role.saved_ms >= CONFIRM_SAVED_MS:
        role.saved_ms = now_ms
        save_confirm(role, event.flushed, out)


def save_confirm(role: Role, flushed: int, out: list[Action]) -> None:
    """Keeps the confirm offset, as far as the own log is on disk."""
    confirm = max(role.facts.confirm, min(role.confirm, flushed))
    save(role, replace(role.facts, confirm=confirm), out)


def may_keep_table(end: int, confirm: int, own_end: int) -> bool:
    """Whether a table that the master took at this end of its log is final (R11).

    Only then is it saved, handed out or applied: what it says of later messages can be taken back.
    """
    return end <= confirm and end <= own_end
