"""Whether the authority's state belongs to this store (R14, R0).

An etcd that was wiped, restored from a backup, or is another one must not elect: its state may be
older than what was acknowledged, and its revisions may repeat. Then nothing is elected, followed
anew or truncated until an operator acts (`broker init`, `broker elect --force`).
"""

from typing import Final

from msgspec.structs import replace

from tianzhou.ha.authority.values import Alive, Replica, View
from tianzhou.ha.replica_facts import ReplicaFacts
from tianzhou.ha.roles.facts import LogFacts
from tianzhou.ha.roles.reasons import Code, Reason

_RESTORED: Final = (
    "was restored from a backup; stop all brokers of the group, then force an election of the "
    "replica with the longest log"
)


def problem_with(view: View, facts: ReplicaFacts, log: LogFacts) -> Reason | None:
    """Why the state in a view is not followed; None if it is."""
    state = view.state
    if state is None:
        if facts.highest_epoch or not log.is_empty:
            return _state_missing(facts, log)
        return None
    if not log.is_empty and state.group != facts.group:
        return _other_group(state.group, facts.group)
    if log.is_empty and state.group != facts.group:
        return None
    if state.epoch < facts.highest_epoch:
        return Reason(
            Code.EPOCH_WENT_BACK,
            f"the authority has epoch {state.epoch}, the group has seen {facts.highest_epoch}: it "
            f"{_RESTORED}",
        )
    if facts.cluster_id not in ("", view.cluster_id) and state.epoch <= facts.highest_epoch:
        return Reason(
            Code.OTHER_CLUSTER,
            f"the authority's cluster id is {view.cluster_id}, so far it was {facts.cluster_id}: "
            "another etcd, or a restored one; stop all brokers of the group, then force an "
            "election of the replica with the longest log",
        )
    if state.epoch == facts.highest_epoch and view.revision < facts.state_revision:
        # The in-sync set of a backup may have members that have left since.
        return Reason(
            Code.REVISION_WENT_BACK,
            f"the authority has revision {view.revision} of the state of epoch {state.epoch}, the "
            f"group has seen revision {facts.state_revision}: it {_RESTORED}",
        )
    return None


def informed(facts: ReplicaFacts, view: View) -> ReplicaFacts:
    """With what other replicas have seen, if the authority no longer has it.

    This one may have been down when the state was newer than it is now. It is remembered, also when
    those that have seen it are down.
    """
    state = view.state
    if state is None or state.group != facts.group:
        return facts
    sources: list[Alive | Replica] = [each.value for each in view.alive.values()]
    sources += [each.value for each in view.replicas.values() if each.value.group == state.group]
    seen = max(((each.seen_epoch, each.seen_revision) for each in sources), default=(0, 0))
    if seen <= max((state.epoch, view.revision), (facts.highest_epoch, facts.state_revision)):
        return facts
    return replace(facts, highest_epoch=seen[0], state_revision=seen[1])


def newest_seen(view: View | None, facts: ReplicaFacts) -> tuple[int, int]:
    """Epoch and revision of the newest state that this replica has seen, for the others of its
    group: theirs are not older when they read it, unless the authority was restored.
    """
    state = view.state if view else None
    if state is not None and state.group != facts.group:
        return 0, 0
    return facts.highest_epoch, facts.state_revision


def _state_missing(facts: ReplicaFacts, log: LogFacts) -> Reason:
    return Reason(
        Code.STATE_MISSING,
        f"the authority has no state of this group, but this store has messages up to {log.end} "
        f"(epoch {facts.highest_epoch}): it was wiped, or the group was never set up; run "
        "`tianzhou broker init` for the replica whose messages count",
    )


def _other_group(theirs: str, own: str) -> Reason:
    if not own:
        return Reason(
            Code.NO_GROUP,
            f"the store has messages that do not belong to group {theirs}: start with an empty "
            "store to join the group",
        )
    return Reason(
        Code.OTHER_GROUP,
        f"the store is of group {own}, the authority has group {theirs}: start with an empty store "
        "to join that group, or correct haEtcdPrefix, brokerClusterName or brokerName",
    )


def accepted(facts: ReplicaFacts, view: View, replica_id: int) -> ReplicaFacts:
    """What to remember of a view without a problem.

    A replica with an empty store takes over the id of the group before its first byte. If it is in
    sync nevertheless, its store was replaced: it has to leave the set (R10).
    """
    state = view.state
    if state is None:
        return facts
    unclean = facts.unclean
    if facts.group != state.group and replica_id in state.in_sync:
        unclean = unclean or "the store is new, but this replica was in sync with another one"
    return replace(
        facts,
        group=state.group,
        cluster_id=view.cluster_id,
        highest_epoch=max(facts.highest_epoch, state.epoch),
        state_revision=view.revision,
        unclean=unclean,
    )
