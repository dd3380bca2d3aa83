"""What this broker stores and shows now, under automatic failover.

One object, which whatever decides about roles sets, and handlers, fast path and the broker's own
writers obey. With fixed roles nothing of it is used.

    show_confirmed   readers see only records below the confirm offset, from the start on
    confirm          the confirm offset has grown: readers see more, parked requests are woken,
                     sends and copies that waited for it are answered
    expect_session   this broker is about to be the master: its features may wait for confirmation
    begin_session    this broker is the master of a new epoch, and a set of replicas counts
    end_session      it is not any more: what waits for that set is not acknowledged
    refuse           messages are refused before they are stored, or requests of readers, too

A refusal is in force when `refuse` returns, for every kind of message, in the handlers, the fast
path and the broker's own writers: the store itself raises it. Sends in a receive buffer that the
fast path has not stored yet are refused.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tianzhou.broker.background.arrivals import Arrivals
from tianzhou.broker.storing.durability import Durability
from tianzhou.broker.storing.in_sync import CountedSet, InSync
from tianzhou.errors import WritesRefused
from tianzhou.protocol.codes import ResponseCode
from tianzhou.store.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class Refusal:
    """The response to a request that is refused."""

    code: int
    text: str
    reason: str = "no role yet"
    """A stable name, for metrics."""


def not_enough_in_sync(count: int, needed: int, broker: str) -> Refusal:
    """Fewer replicas than `minInSyncReplicas` are connected and current."""
    return Refusal(
        ResponseCode.SYSTEM_ERROR,
        f"in-sync replicas not enough: {count} of the {needed} replicas that broker {broker} needs "
        f"(minInSyncReplicas) are connected and current, so the message was not stored; start the "
        f"missing replicas (tianzhou broker group {broker} shows which), or send to another broker",
    )


def suspended(broker: str, why: str) -> Refusal:
    """The master cannot be sure to be the master (rule R7)."""
    return Refusal(
        ResponseCode.SERVICE_NOT_AVAILABLE,
        f"broker {broker} accepts no messages: {why}; send to another broker, or again after the "
        f"next route update",
    )


END_NOT_KNOWN = Refusal(
    ResponseCode.SERVICE_NOT_AVAILABLE,
    "this broker is a new master and does not know yet up to where the queues were readable at its "
    "predecessor: the replicas in sync have not confirmed the log that it took over; ask again",
)
"""Until then ends of queues could be below those that clients have seen."""


class Serving:
    """Set by the driver of the role, on the event loop."""

    def __init__(
        self,
        store: MessageStore,
        durability: Durability,
        arrivals: Arrivals,
        in_sync_replicas: Callable[[], int],
    ) -> None:
        self._store = store
        self._durability = durability
        self._arrivals = arrivals
        self._in_sync_replicas = in_sync_replicas
        self._in_sync: InSync | None = None
        self._was_enough = True
        self._session_start: int | None = None
        """The log offset at which the present session of a master begins."""
        self.writes: Refusal | None = None
        """Why messages are refused; None: they are stored."""
        self.reads: Refusal | None = None
        """Why requests of readers are refused."""
        self.on_refusals: Callable[[], None] = lambda: None
        """Called when one of the two may have changed; the pipeline of requests sets it."""
        self.on_confirmed: Callable[[], None] = lambda: None
        """Called when the confirm offset has grown; the port for slaves sets it."""
        self.refused = Counter[str]()
        """Requests that store messages and were refused, by reason."""

    # -- the confirm offset ------------------------------------------------------------------------

    @property
    def confirm_log_offset(self) -> int:
        """Up to where readers see the log."""
        return self._store.readable_log_offset

    def show_confirmed(self, log_offset: int) -> None:
        """Show readers only what lies below this log offset, and more after `confirm`.

        For the start, before requests are served, and for a log that was cut: with the confirm
        offset that this replica knows for sure (`min(confirm seen, flushed end)`).
        """
        self._store.show_confirmed(log_offset)
        self._arrivals.wait_for_confirmation(self._store)

    def confirm(self, log_offset: int) -> None:
        """The counted set, or the master in a frame, confirms the log up to there.

        Cheap if nothing changes; a slave calls it again after it has appended.
        """
        if self._store.confirm(log_offset):
            self._arrivals.confirmed(self._store.confirmed_log_offset)
            self._durability.confirmed()
            self._durability.replicas_advanced()
            self.on_confirmed()

    @property
    def on_flushed(self) -> Callable[[], None]:
        """Called when a flush that sends wait for has ended, before they are answered.

        With SYNC_FLUSH the master counts with what it has flushed.
        """
        return self._durability.on_flushed

    @on_flushed.setter
    def on_flushed(self, on_flushed: Callable[[], None]) -> None:
        self._durability.on_flushed = on_flushed

    @property
    def ends(self) -> Refusal | None:
        """Why questions for the ends of queues are refused.

        A new master knows an older confirm offset than its predecessor showed to readers. What the
        predecessor confirmed is in the own log, so all of it is known once that is confirmed.
        """
        start = self._session_start
        if start is None or self._store.confirmed_log_offset >= start:
            return None
        return END_NOT_KNOWN

    # -- sessions of the master --------------------------------------------------------------------

    def expect_session(self) -> None:
        """Call it before the features of a master start."""
        self._durability.expect_session()

    def begin_session(self, counted: CountedSet) -> None:
        """This broker is the master now: sends wait for this set."""
        self._session_start = self._store.end_log_offset
        self._in_sync = InSync(counted, self._in_sync_replicas)
        self._durability.begin_session(self._in_sync)
        self._was_enough = self._in_sync.is_enough

    def set_changed(self) -> None:
        """The set in force has another size: sends need not wait for one that is too small."""
        if self._in_sync is None:
            return
        is_enough, self._was_enough = self._in_sync.is_enough, self._was_enough
        if self._was_enough and not is_enough:
            self._durability.replicas_lost()
        elif is_enough:
            self._durability.replicas_advanced()
        self._was_enough = is_enough

    def end_session(self) -> None:
        """This broker is not the master any more, or not in that epoch: refuse writes before.

        Sends that wait are answered with FLUSH_SLAVE_TIMEOUT, whatever is acknowledged later.
        """
        self._in_sync = self._session_start = None
        if self._store.shows_confirmed:
            self._durability.end_session()

    # -- refusals ----------------------------------------------------------------------------------

    def refuse(self, *, writes: Refusal | None, reads: Refusal | None) -> None:
        """Refuse from now on; None: serve."""
        self._store.stop_writes(None if writes is None else WritesRefused(writes.code, writes.text))
        self.writes, self.reads = writes, reads
        self.on_refusals()
