"""The hello where masters are elected: which slave may follow, and what a slave must cut (rule R9).

A replica may have records that no other has: it was the master when they arrived, and was replaced
before another one acknowledged them. The epochs of both logs say from where on. So here a log that
differs is not refused: the master responds without a token, the slave cuts its log at the
consistent point and says hello again.

    master    another group, an unknown incarnation, another log size, a gap: refused
              the slave knows a higher epoch: the master is none any more (`newer_epoch`)
    slave     an older epoch than the one that it follows: refused, whatever the log looks like
              part of its log differs: cut to `cut_point`

No I/O here.
"""

from collections.abc import Callable
from typing import NamedTuple

from tianzhou.errors import ReplicationError
from tianzhou.ha import epochs, hello
from tianzhou.ha.epochs import LISTED_MAX, consistent_point
from tianzhou.ha.hello import Broker, LogState, Membership, Offer
from tianzhou.protocol.headers.ha import HelloRequest

EPOCHS_AHEAD_MAX = 1_000_000
"""No group has so many elections between two hellos; epochs are limited to 32 bits."""


class Session(NamedTuple):
    """One mastership."""

    group: str
    epoch: int


class Verdict(NamedTuple):
    """What a master responds."""

    refusal: str | None = None
    newer_epoch: int = 0
    """The slave has reported to a master of this epoch: the own session is over."""
    must_cut: bool = False


# -- the master's side -----------------------------------------------------------------------------


def judge(
    request: HelloRequest,
    own: Broker,
    session: Session,
    log: LogState,
    incarnation: int,
    crc_of: Callable[[int, int], int | None],
) -> Verdict:
    """The response to a hello; `incarnation` is that of the slave as the authority has it, or 0.

    A slave that has not reached the authority has no incarnation; it may follow, and is not taken
    into the set. Raises ReplicationError for a request that makes no sense.
    """
    if request.group != session.group:
        return Verdict(_other_group(request.group, session.group))
    refusal = hello.other_broker(request, own)
    if refusal is None and request.broker_id == own.id:
        refusal = f"the slave has the id {own.id} of this master: its store is a copy of this one"
    if refusal is not None:
        return Verdict(refusal)
    theirs = epochs.parse(request.epochs)
    newer_epoch = max(request.followed_epoch or 0, epochs.last_number(theirs))
    if newer_epoch > session.epoch + EPOCHS_AHEAD_MAX:
        raise ReplicationError(
            f"the slave says that it knows epoch {newer_epoch}, this master is of {session.epoch}"
        )
    if newer_epoch > session.epoch:
        return Verdict(f"this master is of epoch {session.epoch}, the slave knows epoch "
                       f"{newer_epoch}", newer_epoch)  # fmt: skip
    if 0 < (request.incarnation or 0) < incarnation:
        return Verdict(
            f"the slave says that it is incarnation {request.incarnation}, a newer process of id "
            f"{request.broker_id} has joined the group as {incarnation}: stop one of the two"
        )
    refusal = hello.other_range(request, log)
    if refusal is not None or request.end_offset == 0:
        return Verdict(refusal)
    point = consistent_point(theirs, request.end_offset, log.epochs, log.end_offset)
    if point < request.end_offset:
        return Verdict(must_cut=True)
    return Verdict(hello.other_tail(request, crc_of))


# -- the slave's side ------------------------------------------------------------------------------


def problem_with(offer: Offer, member: Membership, log: LogState) -> str | None:
    """Why this slave must not follow that master; None if it may, after a cut if one is needed."""
    if offer.group != member.group:
        return _other_group(member.group, offer.group)
    if offer.epoch < member.followed_epoch or offer.epoch < epochs.last_number(log.epochs):
        known = max(member.followed_epoch, epochs.last_number(log.epochs))
        return f"the master is of epoch {offer.epoch}, and this replica has followed epoch {known}"
    theirs = offer.log
    if log.file_bytes != theirs.file_bytes:
        return hello.sizes_differ(master=theirs.file_bytes, slave=log.file_bytes)
    if log.is_empty:
        return None
    if log.end_offset < theirs.first_offset:
        return hello.gap(log.end_offset, theirs.first_offset)
    point = cut_point(offer, log)
    if point < log.end_offset and _is_before_list(point, offer):
        return (
            f"the master lists its newest {LISTED_MAX} epochs, from log offset "
            f"{theirs.epochs[0].start} on, and the log here differs before that: make this replica "
            "empty (tianzhou broker resync)"
        )
    if point < theirs.first_offset:
        return hello.gap(point, theirs.first_offset)
    return None


def cut_point(offer: Offer, log: LogState) -> int:
    """Where the slave's log must end to be the beginning of the master's; its end: no cut."""
    if log.is_empty:
        return log.end_offset
    theirs = offer.log
    return consistent_point(log.epochs, log.end_offset, theirs.epochs, theirs.end_offset)


def _is_before_list(point: int, offer: Offer) -> bool:
    theirs = offer.log.epochs
    return len(theirs) >= LISTED_MAX and point < theirs[0].start


def _other_group(slave: str | None, master: str | None) -> str:
    return (
        f"the slave is of group {slave or 'none'}, the master of group {master or 'none'}: their "
        "logs have nothing in common; a replica that shall join another group must have an empty "
        "store directory"
    )
