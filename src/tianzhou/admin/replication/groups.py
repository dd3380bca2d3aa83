"""Groups whose master is elected: finding the replicas, what they say together, and commands.

Any replica knows all others of its group, so one address is enough, and the nameserver need not
know a master. What each replica says of itself comes from itself; the state of the group comes from
the answer with the newest revision, how far slaves are behind from the master.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from tianzhou.admin.admin_client import Admin
from tianzhou.admin.clusters import choose
from tianzhou.admin.fanout import BrokerRef, gather_any
from tianzhou.errors import RemotingError, RequestError, TargetError, TianzhouError
from tianzhou.protocol.bodies.ha_group import GroupInfo, GroupReason, GroupReplica, GroupSelf
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.headers.ha import GroupCommandRequest, GroupCommandResponse

COMMAND_MS = 20_000
"""A broker answers a command within 15 s."""
WAIT_S = 15.0
TWO_GROUPS = "two groups"
"""An alarm that no replica can raise: of brokers of one name that belong to different groups."""
_POLL_S = 0.1
_UNKNOWN = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
_FIXED = ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One replica: as the group sees it, and what it says of itself."""

    seen: GroupReplica
    own: GroupSelf | None = None
    """None: it did not answer."""
    problem: str | None = None
    """Why it did not answer."""

    @property
    def end_offset(self) -> int | None:
        """Where its log ends, as far as known."""
        return self.own.end_offset if self.own else self.seen.end_offset

    def behind_bytes(self, master: "Member | None") -> int | None:
        """What it lacks of the master's log: by its reports, or as both say where they end."""
        end, master_end = self.end_offset, master.end_offset if master else None
        if self.seen.is_connected or end is None or master_end is None:
            return self.seen.behind_bytes
        return max(master_end - end, 0)

    @property
    def log_epoch(self) -> int:
        """Of its newest message, as far as known."""
        return self.own.log_epoch if self.own else self.seen.epoch or 0

    @property
    def label(self) -> str:
        return f"replica {self.seen.id} ({self.seen.address})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group, as its replicas see it together."""

    name: str
    info: GroupInfo
    """The newest answer; `replicas` as the master sees them, if it answered."""
    members: tuple[Member, ...]
    alarms: tuple[GroupReason, ...]
    """Of all replicas that answered, each once."""
    warnings: tuple[str, ...] = field(default=())

    def member(self, replica_id: int) -> Member:
        """Raises TargetError."""
        for each in self.members:
            if each.seen.id == replica_id:
                return each
        known = ", ".join(str(each.seen.id) for each in self.members) or "none"
        raise TargetError(f"{self.name} has no replica {replica_id}; there are: {known}")

    @property
    def master(self) -> Member | None:
        """The one that the state names."""
        return next((each for each in self.members if each.seen.is_master), None)

    @property
    def longest(self) -> Member | None:
        """Of those that answered, the one with the longest log."""
        answering = [each for each in self.members if each.own is not None]
        return max(
            answering, key=lambda each: (each.log_epoch, each.end_offset or 0, -each.seen.id),
            default=None,
        )  # fmt: skip


# -- reading ---------------------------------------------------------------------------------------


async def load_group(admin: Admin, name: str, address: str | None = None) -> Group:
    """Ask the replicas of a broker name; `address` is one of them, for groups without route.

    Raises TargetError if there is none with automatic failover, RemotingError if none answers.
    """
    found = await _first_replicas(admin, name, address)
    answers, failures = await _ask_all(admin, [at.address for at in found])
    _check_name(name, answers)
    others = {
        replica.address for info in answers.values() for replica in info.replicas
    } - answers.keys() - failures.keys()  # fmt: skip
    more, more_failures = await _ask_all(admin, sorted(others))
    failures |= more_failures
    answers |= more
    if not answers:
        raise _none_answers(name, failures)
    return combine(answers, failures, address)


async def _first_replicas(admin: Admin, name: str, address: str | None) -> list[BrokerRef]:
    if address is not None:
        return [BrokerRef(name, 0, address, "")]
    try:
        info = await admin.clusters.info()
    except RemotingError as e:
        raise TargetError(f"{e}; without a nameserver name a replica: --broker HOST:PORT") from e
    try:
        return choose(info, broker=name)
    except TargetError as e:
        raise TargetError(
            f"{e}; if no replica of {name} is registered, name one: --broker HOST:PORT"
        ) from e


def _check_name(name: str, answers: Mapping[str, GroupInfo]) -> None:
    """A command must not be for another group than the one that is named."""
    for address, info in answers.items():
        if info.broker_name != name:
            raise TargetError(f"the broker at {address} is of {info.broker_name}, not of {name}")


async def _ask_all(
    admin: Admin, addresses: Iterable[str]
) -> tuple[dict[str, GroupInfo], dict[str, TianzhouError]]:
    refs = [BrokerRef(address, 0, address, "") for address in dict.fromkeys(addresses)]
    gathered = await gather_any(refs, admin.brokers.group)
    return (
        {at.address: info for at, info in gathered.responses.items()},
        {at.address: why for at, why in gathered.failures.items()},
    )


def _none_answers(name: str, failures: Mapping[str, TianzhouError]) -> TianzhouError:
    for address, error in failures.items():
        if isinstance(error, RequestError) and error.code == _FIXED:
            return TargetError(
                f"{name} has fixed roles, no automatic failover: it is off without haEtcdEndpoints "
                "(docs/failover.md); for fixed roles there are `tianzhou broker ha` and `promote`"
            )
        if isinstance(error, RequestError) and error.code == _UNKNOWN:
            return TargetError(
                f"{address} knows no groups with automatic failover: it is a nameserver, a broker "
                "of RocketMQ, or of an earlier version of Tianzhou"
            )
        if isinstance(error, RequestError):
            return error
    named = "; ".join(f"{address}: {error}" for address, error in failures.items())
    return TargetError(f"no replica of {name} answers: {named}")


def combine(
    answers: Mapping[str, GroupInfo],
    failures: Mapping[str, TianzhouError] | None = None,
    address: str | None = None,
) -> Group:
    """What the answers of several replicas, by their addresses, say together.

    Of two groups with one name the one of `address` is shown, else that with more replicas.
    """
    shown = _shown_group(answers, address)
    strangers = {
        at: info for at, info in answers.items() if info.group is not None and info.group != shown
    }
    answers = {at: info for at, info in answers.items() if at not in strangers}
    newest = max(answers.values(), key=lambda info: (info.revision, _leads(info)))
    by_id = {info.own.id: info for info in answers.values() if info.own.id}
    leading = next(
        (info for info in answers.values() if _leads(info) and info.own.id == newest.master), newest
    )
    seen = {each.id: each for each in leading.replicas}
    problems = {address: str(error) for address, error in (failures or {}).items()}
    members = tuple(
        Member(
            seen=_merged(each, seen.get(each.id)),
            own=by_id[each.id].own if each.id in by_id else None,
            problem=problems.get(each.address),
        )
        for each in newest.replicas
    )
    alarms = {(each.code, each.text): each for info in answers.values() for each in info.alarms}
    if strangers:
        other = _two_groups(newest, strangers)
        alarms[other.code, other.text] = other
    known = {each.seen.address for each in members}
    return Group(
        name=newest.broker_name, info=newest, members=members, alarms=tuple(alarms.values()),
        warnings=tuple(
            f"{address}: {why}" for address, why in problems.items() if address in known
        ),
    )  # fmt: skip


def _shown_group(answers: Mapping[str, GroupInfo], address: str | None) -> str | None:
    """The id of the group to show; None if no replica that answers knows one."""
    asked = answers.get(address) if address is not None else None
    if asked is not None and asked.group is not None:
        return asked.group
    counts = Counter(info.group for info in answers.values() if info.group is not None)
    return max(counts, key=lambda group: (counts[group], group), default=None)


def _two_groups(shown: GroupInfo, strangers: Mapping[str, GroupInfo]) -> GroupReason:
    """Their masters replace each other in the routes, and each group has other messages."""
    named = ", ".join(
        f"{at} (group {info.group}, etcd cluster {info.etcd.cluster_id})"
        for at, info in sorted(strangers.items())
    )
    text = (
        f"another group has the name {shown.broker_name}, too: {named}; this one is group "
        f"{shown.group}, etcd cluster {shown.etcd.cluster_id}: correct haEtcdEndpoints, "
        "haEtcdPrefix or brokerClusterName there, or give those brokers another brokerName"
    )
    return GroupReason(code=TWO_GROUPS, text=text)


def _leads(info: GroupInfo) -> bool:
    return info.own.mode == "master" and info.own.id == info.master


def _merged(newest: GroupReplica, of_master: GroupReplica | None) -> GroupReplica:
    """Roles from the newest state, connections and lag from the master."""
    if of_master is None:
        return newest
    return replace(
        of_master, is_master=newest.is_master, is_in_sync=newest.is_in_sync, is_lost=newest.is_lost
    )


# -- commands --------------------------------------------------------------------------------------


async def ask(
    admin: Admin,
    address: str,
    command: str,
    *,
    replica_id: int | None = None,
    accept_loss: bool = False,
    by: str = "",
) -> tuple[str, GroupCommandResponse]:
    """HA_GROUP_COMMAND; what was done, and who is the master then. Raises RequestError."""
    header = GroupCommandRequest(
        command=command, replica_id=replica_id, accept_loss=accept_loss, by=by
    )
    return await admin.brokers.command_group(
        BrokerRef(address, 0, address, ""), header, timeout_ms=COMMAND_MS
    )


def responsible(group: Group) -> Member:
    """The replica to ask for a change: the master if it answers, else any that does."""
    master = group.master
    if master is not None and master.own is not None:
        return master
    found = next((each for each in group.members if each.own is not None and each.own.id), None)
    if found is None:
        raise TargetError(f"no replica of {group.name} has joined the group in etcd yet")
    return found


async def wait_for_group(
    admin: Admin,
    group: Group,
    is_done: Callable[[GroupInfo], bool],
    wait_s: float = WAIT_S,
) -> GroupInfo:
    """The first answer for which a change is done, or the last one when the time is over."""
    until_s = time.monotonic() + wait_s
    last = group.info
    while True:
        answers, _ = await _ask_all(admin, [each.seen.address for each in group.members])
        last = max(answers.values(), key=lambda info: (info.revision, _leads(info)), default=last)
        if is_done(last) or time.monotonic() > until_s:
            return last
        await asyncio.sleep(_POLL_S)


# -- the price of a forced election ----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a forced election of a replica loses, as far as known."""

    candidate: Member
    lost_bytes: int
    """That the replica with the longest known log has more."""
    lost_messages: int | None
    """About as many messages; None: not known."""
    longest: Member | None
    """The replica with more; None: none is known."""
    unknown: tuple[Member, ...]
    """Replicas that may have more: they did not answer."""


def price_of(group: Group, replica_id: int) -> Price:
    """Raises TargetError if the replica cannot be elected, or if the master is alive."""
    candidate = group.member(replica_id)
    if candidate.own is None:
        raise TargetError(
            f"{candidate.label} does not answer, so it cannot be elected: {candidate.problem}"
        )
    master = group.master
    if master is not None and master.own is not None and master.own.mode == "master":
        raise TargetError(
            f"{master.label} is the master and answers: use `tianzhou broker switch {group.name} "
            f"--to {replica_id}`, or stop that process first: it would go on with its in-sync "
            "slaves, and what it acknowledges would be lost"
        )
    own_end = candidate.end_offset or 0
    others = [each for each in group.members if each is not candidate]
    longest = max(others, key=lambda each: (each.log_epoch, each.end_offset or 0), default=None)
    is_longer = longest is not None and (longest.log_epoch, longest.end_offset or 0) > (
        candidate.log_epoch, own_end
    )  # fmt: skip
    lost = max((longest.end_offset or 0) - own_end, 0) if longest and is_longer else 0
    return Price(
        candidate=candidate,
        lost_bytes=lost,
        lost_messages=_messages(candidate.own, lost),
        longest=longest if is_longer else None,
        unknown=tuple(each for each in others if each.own is None),
    )


def _messages(own: GroupSelf, lost_bytes: int) -> int | None:
    """By the mean size of a message in the log of the replica."""
    if not own.end_offset or not own.message_count:
        return None if lost_bytes else 0
    return -(-lost_bytes * own.message_count // own.end_offset)
