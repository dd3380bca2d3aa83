"""Assigns the records of a log to their queues, for recovery and for copies of a master's log.

A record is appended to its queue if its queue offset is the next one. Another queue offset is
accepted once the next record of the queue continues it: then the queue was deleted and created
again, or messages before it are gone. Otherwise the queue offset is damaged, because no checksum
covers it, and the record is in no queue.
"""

from collections.abc import Callable

from tianzhou.protocol import derived
from tianzhou.protocol.pure.record import RecordFields
from tianzhou.protocol.pure.walk import LOOSE_ITEM
from tianzhou.store import commit_log
from tianzhou.store.consume_queue import ENTRY, ConsumeQueue
from tianzhou.store.recovery_plan import Report, StoreFiles

_GAP_MAX = 100_000
"""The largest plausible gap in a queue; a record with a larger one is damaged."""
_QUEUE_OFFSET_MAX = 2**56

Assigned = tuple[ConsumeQueue, list[RecordFields]]
"""A queue, and the records to append to it."""


class MustRebuild(Exception):
    """The queues contradict the log and must be rebuilt."""


class Derivation:
    """The assignment of records to queues, in the order of the log."""

    __slots__ = (
        "_files", "_is_live", "_on_removal", "_rejected_topics", "_report",
        "lost_count_max", "misses_nothing", "suspects",
    )  # fmt: skip

    def __init__(
        self,
        files: StoreFiles,
        report: Report,
        *,
        is_live: bool = False,
        on_removal: Callable[[], None] = lambda: None,
    ) -> None:
        """With `is_live` more records follow at an unknown time, so that a queue that begins again
        is shown at once. `on_removal` is called before the files of a queue are removed."""
        self._files = files
        self._report = report
        self._is_live = is_live
        self._on_removal = on_removal
        self._rejected_topics: set[str] = set()
        """Topics whose names cannot be directories."""
        self.suspects: dict[tuple[str, int], RecordFields] = {}
        """Last records whose queue offset does not continue the queue, by topic and queue id."""
        self.misses_nothing = True
        """The queues have all entries of the log before the first assigned record."""
        self.lost_count_max = 0
        """The most messages that damaged parts of the log can have held."""

    def has_queue(self, fields: RecordFields) -> bool:
        """Whether the topic of a record can have queues and keys."""
        topic = fields[commit_log.TOPIC]
        if derived.is_topic_name(topic):
            return True
        if topic not in self._rejected_topics:
            self._rejected_topics.add(topic)
            self._report.note(
                f"the record at {fields[commit_log.LOG_OFFSET]} and others of its topic are in no "
                f"queue: {topic[:80]!r} ({derived.name_bytes(topic)} bytes) cannot name a folder"
            )
        return False

    def assign(self, fields: RecordFields) -> Assigned:
        """Returns the records to append now, for which the queue has the right next offset.

        Raises OSError. After an error, or if the records were not appended, the call can be
        repeated with the former suspects.
        """
        queue = self._files.queues.get_or_make(
            fields[commit_log.TOPIC], fields[commit_log.QUEUE_ID]
        )
        name = (queue.topic, queue.queue_id)
        wanted, here = fields[commit_log.QUEUE_OFFSET], queue.next_offset
        assigned: list[RecordFields] = []
        suspect = self.suspects.pop(name, None)
        if suspect is not None:
            if wanted == suspect[commit_log.QUEUE_OFFSET] + 1:
                queue = self._jump(queue, suspect[commit_log.QUEUE_OFFSET])
                assigned.append(suspect)
                here = wanted
            elif wanted == here + 1:
                # The damaged record was the one between.
                self._drop(queue, suspect)
                queue.skip_to(wanted)
                here = wanted
            else:
                self._drop(queue, suspect)
        if wanted == here:
            assigned.append(fields)
        elif wanted > here and not self.misses_nothing:
            where = f"queue {queue.topic}/{queue.queue_id}"
            raise MustRebuild(f"{where}: entries {here} to {wanted - 1} are missing")
        elif queue.is_empty and here < wanted <= _QUEUE_OFFSET_MAX:
            # The queue begins here: the log has none of its older messages.
            queue.skip_to(wanted)
            assigned.append(fields)
        elif 0 < wanted - here <= self.lost_count_max or (self._is_live and wanted == 0):
            queue = self._jump(queue, wanted)
            assigned.append(fields)
        else:
            self.suspects[name] = fields
        return queue, assigned

    def _jump(self, queue: ConsumeQueue, wanted: int) -> ConsumeQueue:
        """Continues a queue at another queue offset; returns the queue, which may be a new one."""
        here, where = queue.next_offset, f"queue {queue.topic}/{queue.queue_id}"
        if here == wanted:
            return queue  # a repeated call
        if here < wanted <= here + _GAP_MAX:
            self._report.note(f"{where}: messages {here} to {wanted - 1} are not in the log")
        else:
            self._report.note(
                f"{where}: continues at message {wanted} instead of {here}; older entries are "
                "removed"
            )
            self._on_removal()
            # A flush in another thread may use the old object still.
            self._files.queues.remove(queue)
            queue = self._files.queues.get_or_make(queue.topic, queue.queue_id)
        queue.skip_to(wanted)
        return queue

    def _drop(self, queue: ConsumeQueue, fields: RecordFields) -> None:
        self._report.note(
            f"the record at {fields[commit_log.LOG_OFFSET]} claims to be message "
            f"{fields[commit_log.QUEUE_OFFSET]} of queue {queue.topic}/{queue.queue_id}, where "
            f"{queue.next_offset} is next; it is in no queue"
        )

    def resolve_suspects(self) -> list[Assigned]:
        """At the end of the log: no later record confirms the suspects.

        The first record of a queue needs no confirmation.
        """
        assigned: list[Assigned] = []
        for (topic, queue_id), fields in self.suspects.items():
            queue = self._files.queues.get_or_make(topic, queue_id)
            if fields[commit_log.QUEUE_OFFSET] == 0:
                assigned.append((self._jump(queue, 0), [fields]))
            else:
                self._drop(queue, fields)
                if not queue.next_offset:
                    self._files.queues.forget(topic, queue_id)
        self.suspects.clear()
        return assigned


def entry_of(fields: RecordFields, delay_levels_ms: tuple[int, ...]) -> bytes:
    """The queue entry of a record."""
    code = derived.tags_code(
        fields[commit_log.TOPIC], fields[commit_log.PROPERTIES], fields[commit_log.STORE_TIME],
        delay_levels_ms,
    )  # fmt: skip
    return ENTRY.pack(fields[commit_log.LOG_OFFSET], fields[commit_log.SIZE], code)


def put_entry(queue: ConsumeQueue, entry: bytes, store_time_ms: int) -> None:
    """Appends an entry of `entry_of`, as a unit if the queue has units. Raises OSError."""
    log_offset, size_bytes, code = ENTRY.unpack(entry)
    queue.ensure_space(1)
    queue.put(log_offset, size_bytes, queue.code_of(code, store_time_ms))


def index_items(fields: RecordFields, keys_max: int) -> bytes:
    """The index items of a record, as LOOSE_ITEMs."""
    topic, log_offset = fields[commit_log.TOPIC], fields[commit_log.LOG_OFFSET]
    keys = derived.index_keys(fields[commit_log.PROPERTIES], fields[commit_log.SYS_FLAG])
    return b"".join(
        LOOSE_ITEM.pack(derived.key_hash(topic, key), log_offset, fields[commit_log.STORE_TIME])
        for key in keys[:keys_max]
    )
