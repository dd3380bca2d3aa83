"""Why something was decided: a code for programs and a text for operators."""

from enum import StrEnum
from typing import NamedTuple


class Code(StrEnum):
    """Stable names of decisions; shown by `tianzhou broker group` and in metrics."""

    # a replica is no candidate because
    PAUSED = "paused"
    NO_VIEW = "authority not reached"
    NO_LEASE = "no own lease"
    NOT_IN_SYNC = "not in sync"
    UNCLEAN = "unclean store"
    STOPPED = "stopped"
    PRIORITY_ZERO = "priority 0"
    MASTER_ALIVE = "master alive"
    MASTER_CONNECTED = "master connected"
    WAITS_ITS_TURN = "better candidate"
    DAMPED = "too many elections"
    PENDING = "proposal in flight"
    IS_MASTER = "is the master"
    # a replica stands for election because
    MASTER_LEASE_ENDED = "lease ended"
    MASTER_RESTARTED = "master restarted"
    MASTER_REFUSES = "connections refused"
    NO_MASTER = "no master"
    NAMED_MASTER = "named master, not leading"
    PLANNED = "planned switch"
    FORCED = "forced election"
    FIRST = "first master"
    UNCLEAN_RECOVERY = "unclean recovery"
    # a replica stops until the operator acts because
    OTHER_GROUP = "other group"
    NO_GROUP = "store without group"
    OTHER_CLUSTER = "other authority"
    EPOCH_WENT_BACK = "epoch went back"
    REVISION_WENT_BACK = "revision went back"
    STATE_MISSING = "state missing"
    BELOW_CONFIRMED = "would cut confirmed messages"
    DISK_FAILED = "disk failed"
    IDENTITY_IN_USE = "identity in use"
    RETIRED = "retired"
    RESYNC = "resync"
    # writes are refused because
    NOT_ENOUGH_IN_SYNC = "not enough in-sync replicas"
    SUSPENDED = "suspended"
    SWITCHING = "switching"
    CONNECTING = "replicas connect"
    NOT_MASTER = "not the master"
    # the in-sync set changed, or did not
    MEMBER_DISCONNECTED = "member disconnected"
    MEMBER_STALLED = "member stalled"
    MEMBER_MISSING = "member missing"
    MEMBER_CAUGHT_UP = "member caught up"
    AT_MINIMUM = "at minInSync"
    LEFT_UNCLEAN = "left after an unclean stop"
    # a master ends its session because
    HIGHER_EPOCH = "higher epoch"
    HANDED_OVER = "handed over"
    # an operator's request
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


class Reason(NamedTuple):
    """One decision."""

    code: Code
    text: str
