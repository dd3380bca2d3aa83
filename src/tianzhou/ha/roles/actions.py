"""What a replica must do: the outputs of `machine.step`.

Actions are executed in order, also over several steps: each one is finished before the next one
begins, so Save(facts), OpenStream() means that the facts are on disk before the first report
leaves. Only Propose, Read, Rejoin, PutWish and Follow go on in the background: once begun they do
not delay the actions behind them. When an action cannot be executed because of the disk, the
actions that wait are dropped and DiskFailed follows. Those that end something are not dropped
(StepDown, StopFollowing, Disconnect, ResumeWriters, Stop, Ready), nor are Read, PutWish, Reply and
Note; a dropped Propose is answered UNKNOWN.
"""

from dataclasses import dataclass

from tianzhou.ha.authority.values import Proposal, Wish
from tianzhou.ha.epochs import Epochs
from tianzhou.ha.replica_facts import ReplicaFacts
from tianzhou.ha.roles.reasons import Reason

# -- the authority ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Propose:
    """Send a transaction; ends with Answered(number, ...), UNKNOWN after a time-out.

    StopFollowing before it is finished before it is sent (R6 a).
    """

    number: int
    proposal: Proposal


@dataclass(frozen=True, slots=True)
class Read:
    """Read linearizably, again and again until it succeeds; ends with Viewed.

    One that is under way is enough.
    """


@dataclass(frozen=True, slots=True)
class Rejoin:
    """Put `replicas/ID` again, so that this replica has a new incarnation; ends with Joined.

    Tried again until the authority answers. Goes on in the background.
    """


@dataclass(frozen=True, slots=True)
class PutWish:
    """Put the wish of an operator, then answer the ticket with what happened."""

    ticket: int
    wish: Wish


# -- the disk --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Save:
    """Save the facts with fsync (file and folder)."""

    facts: ReplicaFacts


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log to this end and the entries of epochs to these, crash-safe (R9).

    Also if only the entries change. Afterwards the log ends there.
    """

    to: int
    epochs: Epochs


@dataclass(frozen=True, slots=True)
class StartEmpty:
    """Save the log from here on in a file beside the store, then remove the whole log, crash-safe;
    ends with Emptied.
    """

    saved_from: int


# -- as a slave ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Follow:
    """Send hellos to this master until it answers; ends with MasterOffered, again after each loss
    of the connection (MasterDisconnected).

    Replaces an earlier Follow. The hello carries the group, the incarnation (`role.incarnation`)
    and the followed epoch (`role.facts.followed_epoch`) of this replica.
    """

    master: int
    addr: str
    """Listen port of the master, host:port."""


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Open the HA connection that the hello announced, and report: MasterOffered was accepted.

    Each (epoch, start) of a frame's header is fsynced before the first byte of that epoch.
    """

    epoch: int


@dataclass(frozen=True, slots=True)
class StopFollowing:
    """Close the connection to the master, send no report any more, store what is complete.

    Finished when nothing of the connection can change the log. Nothing to do without one.
    """


@dataclass(frozen=True, slots=True)
class AskHandover:
    """Ask the master on the HA connection to hand over (HandoverAsked there)."""


# -- as a master -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lead:
    """Become master of an epoch, up to the moment before requests are served (R6 d, e).

    In order: entry (epoch, end of the log) with fsync, the incomplete tail being cut; `facts` with
    fsync; the fence command; tables clamped to the log, missing topics, next queue offsets, from
    the whole log. Ends with Led. Slaves are refused until then.
    """

    epoch: int
    facts: ReplicaFacts


@dataclass(frozen=True, slots=True)
class Serve:
    """What clients may do from now on. Sent when it changes.

    What it refuses is refused when the step ends, before earlier actions are executed; what it
    allows, when it is executed.
    """

    is_master: bool
    epoch: int
    """stateVersion of the registration."""
    is_registered: bool
    """False: unregister, and close the connections of clients; the HA port stays open."""
    refusal: Reason | None
    """Why writes (of clients; see StopWriters) are refused before they are stored; None: allowed.

    SUSPENDED, SWITCHING, CONNECTING: SERVICE_NOT_AVAILABLE, which clients repeat.
    NOT_ENOUGH_IN_SYNC: SYSTEM_ERROR. Reads are served while registered, below the confirm offset.
    """


@dataclass(frozen=True, slots=True)
class StepDown:
    """End the session of the master: stop all writers, internal ones too; close the connections of
    slaves; sends that wait for acknowledgements end with FLUSH_SLAVE_TIMEOUT.

    `role.session` is None from now on. Save tables before (R11).
    """

    reason: Reason


@dataclass(frozen=True, slots=True)
class StopWriters:
    """Store nothing any more, neither for clients nor internally (planned switch); sends that are
    stored still get their response. Ends with WritersStopped.
    """


@dataclass(frozen=True, slots=True)
class ResumeWriters:
    """Store again: the planned switch did not happen."""


@dataclass(frozen=True, slots=True)
class Agree:
    """Tell a slave on its HA connection that it may take over from this epoch (HandoverOffered)."""

    to: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the HA connection of a slave; SlaveDisconnected follows."""

    id: int
    reason: Reason


# -- operators -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer an operator's request."""

    ticket: int
    is_ok: bool
    reason: Reason


@dataclass(frozen=True, slots=True)
class Note:
    """Log a decision; `is_alarm`: an operator should look."""

    reason: Reason
    is_alarm: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """Take no part any more: neither follow nor lead nor stand, until an operator acts (restart,
    resync, elect). The process lives and says why. StepDown or StopFollowing came before.
    """

    reason: Reason


@dataclass(frozen=True, slots=True)
class Ready:
    """Nothing keeps the process from ending (StopAsked): revoke the lease and end."""


Action = (
    Propose
    | Read
    | Rejoin
    | PutWish
    | Save
    | Truncate
    | StartEmpty
    | Follow
    | OpenStream
    | StopFollowing
    | AskHandover
    | Lead
    | Serve
    | StepDown
    | StopWriters
    | ResumeWriters
    | Agree
    | Disconnect
    | Reply
    | Note
    | Stop
    | Ready
)
