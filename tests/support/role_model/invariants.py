"""What must hold, judged by what no replica knows: everything that was readable and acknowledged.

I1  Every acknowledged record is in the log of every later master.
I2  An old master acknowledges nothing that the new one lacks; no two masters begin one epoch.
I3  A record that was readable is at the same offset in every later master.
I4  Logs that agree on the epoch of a record agree on all before it; entries describe the log.
I5  A truncation never removes the last copy of a readable record.
I6  No replica stops without a forced election (and `search.can_recover`).
I7  Tables of a new master claim no record that its log lacks.

Functions return what is known afterwards, and the violation, if any.
"""

from tests.support.role_model.world import Ghosts, Store
from tianzhou.ha.epochs import IMPLIED, Epoch, Epochs
from tianzhou.ha.roles.role import Role

Judged = tuple[Ghosts, str]


def of_replica(ghosts: Ghosts, role: Role, log: tuple[int, ...], *, reads: bool) -> Judged:
    """What readers and senders see of a replica now."""
    session = role.session
    epoch = session.epoch if session else role.followed_session
    confirm = session.counted.confirm if session else role.confirm
    violation = ""
    if epoch < ghosts.forced:
        return ghosts, ""
    for position in range(min(confirm, len(log))):
        record = log[position]
        is_own = session is not None and ghosts.epoch_of[record] == session.epoch
        promised = is_own and session is not None and session.counted.is_promised(position + 1)
        if promised or reads:
            ghosts, found = _seen(ghosts, position, record, epoch, promised=promised)
            violation = violation or found
    return ghosts, violation


def _seen(ghosts: Ghosts, position: int, record: int, epoch: int, *, promised: bool) -> Judged:
    seen, acknowledged, violation = ghosts.seen, ghosts.acknowledged, ""
    missing = position + 1 - len(seen)
    if missing > 0:
        seen, acknowledged = seen + (0,) * missing, acknowledged + (False,) * missing
    if seen[position] not in (0, record):
        violation = "I3: two readable records at one offset"
    if seen[position] != record or (promised and not acknowledged[position]):
        promised_now = acknowledged[position] or promised
        seen = (*seen[:position], record, *seen[position + 1 :])
        acknowledged = (*acknowledged[:position], promised_now, *acknowledged[position + 1 :])
        ghosts = ghosts._replace(seen=seen, acknowledged=acknowledged)
    is_old = 0 < epoch < ghosts.newest
    if is_old and ghosts.newest_log[position : position + 1] != (record,):
        which = "I2: an old master acknowledged" if promised else "I3: an old master showed"
        violation = violation or f"{which} what the new one lacks"
    return ghosts, violation


def begun(ghosts: Ghosts, store: Store, epoch: int) -> Judged:
    """A master begins its epoch."""
    if epoch == ghosts.newest:
        return ghosts, "I2: two masters began one epoch"
    if epoch < ghosts.newest:
        return ghosts, ""
    violation = ""
    for position, record in enumerate(ghosts.seen):
        if record and store.log[position : position + 1] != (record,):
            what = "I1: an acknowledged" if ghosts.acknowledged[position] else "I3: a readable"
            violation = violation or f"{what} record is missing in a later master"
    end, record = store.table
    if end and store.log[end - 1 : end] != (record,) and not ghosts.forced:
        violation = violation or "I7: a table of a new master claims a record that its log lacks"
    return ghosts._replace(newest=epoch, newest_log=store.log), violation


def forced(ghosts: Ghosts, log: tuple[int, ...], epoch: int) -> Ghosts:
    """An operator forced an election, and accepted the loss of what the elected one lacks."""
    kept = [log[position : position + 1] == (each,) for position, each in enumerate(ghosts.seen)]
    pairs = zip(ghosts.seen, ghosts.acknowledged, kept, strict=True)
    left = [(record, was) if keep else (0, False) for record, was, keep in pairs]
    return ghosts._replace(
        forced=epoch,
        seen=tuple(record for record, _ in left),
        acknowledged=tuple(was for _, was in left),
    )


def of_truncation(ghosts: Ghosts, stores: list[Store], slave: int, to: int) -> str:
    """A slave cuts its log; before that."""
    log = stores[slave - 1].log
    others = [store.log for each, store in enumerate(stores, 1) if each != slave]
    for position in range(to, len(log)):
        record = log[position : position + 1]
        was_seen = ghosts.seen[position : position + 1] == record
        if was_seen and not any(other[position : position + 1] == record for other in others):
            return "I5: a truncation removed the last copy of a readable record"
    return ""


def of_logs(stores: tuple[Store, ...], epoch_of: tuple[int, ...]) -> str:
    """The logs compared with each other and with their entries."""
    numbers = [
        tuple(entry_at(store.epochs, position).number for position in range(len(store.log)))
        for store in stores
    ]
    for store, epochs in zip(stores, numbers, strict=True):
        if any(epoch_of[each] != epoch for each, epoch in zip(store.log, epochs, strict=True)):
            return "I4: the entries of epochs do not describe the log"
    for first in range(len(stores)):
        for second in range(first + 1, len(stores)):
            differ = False
            for one, other, epoch, its in zip(
                stores[first].log, stores[second].log, numbers[first], numbers[second], strict=False
            ):
                differ = differ or one != other
                if differ and epoch == its:
                    return "I4: logs that agree on an epoch differ before it"
    return ""


def entry_at(known: Epochs, position: int) -> Epoch:
    """The entry that a log offset belongs to."""
    entry = IMPLIED
    for each in known:
        if each.start <= position:
            entry = each
    return entry
