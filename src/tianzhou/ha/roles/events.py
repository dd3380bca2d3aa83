"""What happens to a replica: the inputs of `machine.step`.

The caller guarantees:

- One event at a time, in the order in which things happened. `now_ms` never goes back; it counts
  while the host sleeps (CLOCK_BOOTTIME).
- Actions are executed in the order of `actions`; see there which of them end with an event.
- Events of a connection that an action has closed do not come after that action was executed.

Acknowledgements of slaves are too frequent for events: the caller gives them to
`role.session.counted` (`counted_set.CountedSet`) directly, and the machine reads it at each Tick.
"""

from dataclasses import dataclass

from tianzhou.ha.authority.values import Outcome, View
from tianzhou.ha.epochs import Epochs
from tianzhou.ha.replica_facts import ReplicaFacts, Start
from tianzhou.ha.roles.facts import LogFacts


@dataclass(frozen=True, slots=True)
class Started:
    """The process has finished a begun truncation and opened its store. First event, once.

    `facts` are those of `replica_facts.of_start`, which are saved already.
    """

    facts: ReplicaFacts
    start: Start
    log: LogFacts
    new_group: str
    """A new random id, for the case that this replica founds the group."""


@dataclass(frozen=True, slots=True)
class Joined:
    """`replicas/ID` was put, so that this process has an incarnation.

    Again whenever the key was put again. Until it comes, the replica can only follow the master
    that it followed last.
    """

    id: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Viewed:
    """A linearizable read (asked for by Read, or after Joined), or a change that a watch showed.

    Views may come twice or late: older ones are ignored. Changes of `alive` keys matter, too.
    """

    view: View


@dataclass(frozen=True, slots=True)
class Answered:
    """A proposal ended. Exactly once for each Propose; after a time-out with UNKNOWN."""

    number: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """The authority renewed the lease of `alive/ID`; the request was sent at `sent_ms`."""

    sent_ms: int


@dataclass(frozen=True, slots=True)
class IdentityInUse:
    """Another living process has `alive/ID`: the disk was copied, or an old process still runs.

    Sent when the key is held by another lease for longer than that lease can last (`detail` names
    its store and incarnation), not during the first seconds after a restart.
    """

    detail: str


# -- as a slave ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MasterOffered:
    """The master that Follow names has answered the hello; nothing was sent on the HA port yet.

    The caller has compared what both brokers say of their configuration (file size, group id).
    """

    master: int
    epoch: int
    """Of the master's session."""
    epochs: Epochs
    end: int
    log: LogFacts
    """Of this replica, as its hello said."""


@dataclass(frozen=True, slots=True)
class MasterHeard:
    """Bytes or a heartbeat of the master came in on the HA connection.

    Sent at least every 500 ms while the connection is healthy, and when the confirm offset changed.
    """

    confirm: int
    """The confirm offset that the frame carries."""
    end: int
    """Of the own log."""
    flushed: int


@dataclass(frozen=True, slots=True)
class MasterDisconnected:
    """The HA connection to the master ended, or a hello or connection attempt failed or timed out.

    After it the caller goes on trying to follow the same master with new hellos until it gets
    StopFollowing or another Follow.
    """

    detail: str = ""


@dataclass(frozen=True, slots=True)
class MasterRefuses:
    """Three attempts to connect to the master's HA port within 300 ms were refused by its host.

    Only after the HA connection ended. The fast path of an election; a host that does not answer
    at all is not a refusal.
    """


@dataclass(frozen=True, slots=True)
class HandoverOffered:
    """The master agreed, on the HA connection, that this replica takes over from its epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Emptied:
    """StartEmpty was executed: the store has no record any more."""

    log: LogFacts
    saved_in: str = ""
    """The file that has what was asked to be saved; empty if there was nothing to save."""


# -- as a master -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Led:
    """Lead was executed: the entry of the epoch is on disk, nothing was stored in it yet."""

    epoch: int
    log: LogFacts
    """With the new entry, which starts at its end."""


@dataclass(frozen=True, slots=True)
class SlaveConnected:
    """A slave of the group opened the HA connection that its hello announced.

    It replaces an earlier connection of the same id. The caller has refused a hello for which
    `elected_hello.judge` names a reason.
    """

    id: int
    incarnation: int
    """From the hello; 0: the slave has not reached the authority."""


@dataclass(frozen=True, slots=True)
class SlaveDisconnected:
    """The HA connection of a slave ended, and no other one of that id replaced it."""

    id: int


@dataclass(frozen=True, slots=True)
class EpochSeen:
    """A hello of the group (accepted or not), or the refusal of a nameserver, has this epoch.

    Needed only if it is larger than `role.session.epoch`, or if there is no session. It ends a
    session only if the authority has it, too.
    """

    epoch: int
    source: str


@dataclass(frozen=True, slots=True)
class WritersStopped:
    """StopWriters was executed: nothing is stored any more, the log ends at `log.end`."""

    log: LogFacts


@dataclass(frozen=True, slots=True)
class HandoverAsked:
    """A slave that sees the own lease gone for long asks, on the HA connection, to take over."""

    id: int


# -- always ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: every 100 ms."""

    log: LogFacts


@dataclass(frozen=True, slots=True)
class Frozen:
    """The event loop did not run for `gap_ms`, more than a third of the lease (R13).

    Before any request that waited is served: its actions are executed first.
    """

    gap_ms: int


@dataclass(frozen=True, slots=True)
class DiskFailed:
    """A write or fsync of the log or of the facts failed, or hung; `detail` names the error."""

    detail: str
    is_fsync: bool = False
    """What was acknowledged may be lost, so that the store is unclean: the caller has saved
    `replica_facts.of_failed_fsync`, if the disk still allows it.
    """


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The process is to end (SIGTERM): a master hands over first.

    Ends with the action Ready, after at most two seconds.
    """


@dataclass(frozen=True, slots=True)
class Asked:
    """An operator's request; ends with the action Reply (or PutWish) for the ticket."""

    ticket: int
    command: "Command"
    by: str = ""


# -- what operators ask for ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Switch:
    """A planned switch to a replica; None: to the best one."""

    to: int | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """No elections until Resume."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Elections again."""


@dataclass(frozen=True, slots=True)
class Retire:
    """Remove a replica from the group for ever."""

    id: int


@dataclass(frozen=True, slots=True)
class Init:
    """This replica founds the group though stores are not empty: its log is the one that counts."""

    group: str
    """A new random id."""


@dataclass(frozen=True, slots=True)
class Elect:
    """A forced election of a replica: messages that it lacks are lost."""

    id: int
    accept_loss: bool


@dataclass(frozen=True, slots=True)
class Resync:
    """This replica removes its log and copies the master's."""


Command = Switch | Pause | Resume | Retire | Init | Elect | Resync

Event = (
    Started
    | Joined
    | Viewed
    | Answered
    | LeaseRenewed
    | IdentityInUse
    | MasterOffered
    | MasterHeard
    | MasterDisconnected
    | MasterRefuses
    | HandoverOffered
    | Emptied
    | Led
    | SlaveConnected
    | SlaveDisconnected
    | EpochSeen
    | WritersStopped
    | HandoverAsked
    | Tick
    | Frozen
    | DiskFailed
    | StopAsked
    | Asked
)
