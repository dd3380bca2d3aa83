"""A group of replicas whose master is elected, as one of them sees it: response to HA_GROUP.

A request of Tianzhou's own. Offsets are log offsets, times are ms since 1970.
"""

from msgspec import field

from tianzhou.protocol.bodies.codec import Body
from tianzhou.protocol.integers import Int32, Int64


class GroupReason(Body, frozen=True, kw_only=True):
    """Why something is as it is: a stable name, and a text for operators."""

    code: str = ""
    text: str = ""


class GroupSwitch(Body, frozen=True, kw_only=True):
    """One change of the master."""

    epoch: Int32 = 0
    master: Int32 = 0
    cause: str = ""
    time_ms: Int64 = field(default=0, name="time")
    duration_ms: Int64 = 0
    """From the loss of the old master, as the new one noticed it, to its election."""


class GroupReplica(Body, frozen=True, kw_only=True):
    """One replica, as the replica that answers sees it."""

    id: Int32 = 0
    address: str = ""
    ha_address: str = ""
    version: str = ""
    priority: Int32 = 0
    """brokerElectionPriority: 0 is never elected."""
    incarnation: Int64 = 0
    is_alive: bool = field(default=False, name="alive")
    """It renews its lease."""
    is_master: bool = field(default=False, name="master")
    is_in_sync: bool = field(default=False, name="inSync")
    is_lost: bool = field(default=False, name="lost")
    """It left the in-sync set because it may have lost messages."""
    is_connected: bool | None = field(default=None, name="connected")
    """To the master; None: only the master knows."""
    is_current: bool | None = field(default=None, name="current")
    """It acknowledges what is sent to it; None: only the master knows."""
    epoch: Int32 | None = None
    """Of its newest message; None: not known."""
    end_offset: Int64 | None = None
    """Of its log, or what it has acknowledged."""
    behind_bytes: Int64 | None = None
    behind_ms: Int64 | None = None
    """How long the first byte that it lacks has been in the log."""


class GroupSelf(Body, frozen=True, kw_only=True):
    """The replica that answers."""

    id: Int32 = 0
    mode: str = ""
    """starting, slave, candidate, promoting, master or stopped."""
    epoch: Int32 = 0
    """That it leads or follows; 0: none."""
    log_epoch: Int32 = 0
    """Of its newest message."""
    end_offset: Int64 = 0
    flushed_offset: Int64 = 0
    confirm_offset: Int64 = 0
    """Up to where every later master has the log: readers see what lies below."""
    message_count: Int64 = 0
    """Messages in its log, about."""
    first_offset: Int64 = 0
    lease_age_ms: Int64 | None = None
    """None: it never had one."""
    has_lease: bool = False
    is_lease_fresh: bool = field(default=False, name="leaseFresh")
    candidate: GroupReason | None = None
    """Why it is no candidate, or why it stands for election."""
    refusal: GroupReason | None = None
    """Why sends are refused; None: they are accepted."""
    untrusted: GroupReason | None = None
    """Why it does not follow the state in etcd."""
    stopped: GroupReason | None = None
    """Why it takes no part until an operator acts."""
    unclean: str = ""
    """Why its store may lack messages."""
    reasons: list[GroupReason] = field(default=[])
    """Its last decisions, newest last."""


class EtcdMember(Body, frozen=True, kw_only=True):
    """One endpoint of etcd."""

    endpoint: str = ""
    is_answering: bool = field(default=False, name="answering")
    is_leader: bool = field(default=False, name="leader")
    version: str = ""
    latency_ms: float = 0.0
    problem: str = ""


class GroupAuthority(Body, frozen=True, kw_only=True):
    """etcd, as the replica that answers sees it."""

    cluster_id: str = ""
    problem: str | None = None
    """Why it cannot be reached."""
    members: list[EtcdMember] = field(default=[])


class GroupInfo(Body, frozen=True, kw_only=True):
    """Response to HA_GROUP."""

    cluster: str = ""
    broker_name: str = ""
    group: str | None = None
    """The random id of the group; None: it does not exist yet, or is not known here."""
    revision: Int64 = 0
    """Of the state in etcd: of two answers the one with the larger revision is newer."""
    epoch: Int32 = 0
    master: Int32 | None = None
    master_address: str | None = None
    in_sync: list[Int32] = field(default=[])
    lost: list[Int32] = field(default=[])
    min_in_sync: Int32 = 0
    is_paused: bool = field(default=False, name="paused")
    cause: str = ""
    """Of the last change of the state."""
    changed_ms: Int64 = 0
    replicas: list[GroupReplica] = field(default=[])
    history: list[GroupSwitch] = field(default=[])
    """The last switches, newest last."""
    own: GroupSelf = GroupSelf()
    etcd: GroupAuthority = GroupAuthority()
    alarms: list[GroupReason] = field(default=[])
    """What an operator should look at."""
