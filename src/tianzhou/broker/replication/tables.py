"""The tables of a slave: copies of its master's, applied in step with the log.

Topics, groups and modes become equal to the master's, but system topics, which depend on the
settings of each broker, stay. Offsets are put over those of the slave by topic and group. The
progress of delayed and timed messages replaces the slave's, and is loaded from its files when the
slave becomes the master.

A table is applied when the log of the slave is on disk up to the end that the master's log had when
the table was read: so a table claims nothing that the log lacks, after a power cut neither.

Entries that the master announces are in force at once (`announced`): a topic without messages
claims nothing. A copy that is older than an announcement does not take it back.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from tianzhou.broker.scheduled.service import ScheduledMessages
from tianzhou.broker.scheduled.timer_checkpoint import decode_checkpoint
from tianzhou.broker.state import BrokerState
from tianzhou.errors import BodyError, RemotingError, StoreError, TianzhouError
from tianzhou.ha import tables
from tianzhou.ha.tables import (
    Master,
    PendingTables,
    Table,
    TableChange,
    TableCopy,
    TableMissing,
    decode_changes,
)
from tianzhou.limits import HA_CHANGES_MAX
from tianzhou.protocol.bodies.groups import SubscriptionGroupTable
from tianzhou.protocol.bodies.offsets import ConsumerOffsetTable
from tianzhou.protocol.bodies.queues import MessageRequestModeTable
from tianzhou.protocol.bodies.topics import TopicConfigTable
from tianzhou.remoting.client import Client
from tianzhou.remoting.scheduler import finish

log = logging.getLogger(__name__)

_PENDING_POLL_S = 0.05
"""How often to compare the end of the log with that of a pending table."""
_IDLE_S = 0.5
"""How often to look for a master while there is none."""
_CHECK_BYTES = 56


class SlaveLog(Protocol):
    """What is needed of the slave's store."""

    @property
    def end_log_offset(self) -> int: ...

    def flushed(self, log_offset: int) -> Future[None]:
        """Completed when the log is on disk up to this offset."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """One table of a slave."""

    name: str
    is_applied: bool
    """Whether it was applied since the slave follows this master, or the master lacks it."""
    age_ms: int | None
    """How long ago it was equal to the master's; None: never."""
    waits_for: int | None
    """The log offset that a newer version waits for."""
    problem: str | None


class _Applied(NamedTuple):
    """What a table was when it was last equal to the master's."""

    version: str
    marker: object
    """Changes when the slave changes the table itself; then all of it is read again."""


class TableCopies:
    """Copies the tables of the master while `run` runs."""

    def __init__(
        self,
        *,
        state: BrokerState,
        scheduled: ScheduledMessages,
        store: SlaveLog,
        client: Client,
        master_address: Callable[[], str | None],
        is_ours: Callable[[], bool],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`master_address` is where the master listens for requests, None while it is unknown.

        `is_ours` tells whether it is a broker of Tianzhou. Nothing is read before `connected`.
        """
        self._state = state
        self._scheduled = scheduled
        self._store = store
        self._client = client
        self._master_address = master_address
        self._is_ours = is_ours
        self._now_s = now_s
        self._tables = [
            table for table in Table if table is not Table.TIMER or scheduled.timer is not None
        ]
        self._is_connected = False
        self._connected_to: str | None = None
        """The address of the master that accepted the slave; None if it was not known then."""
        self._master: Master | None = None
        """The source of everything below."""
        self._pending = PendingTables()
        self._applied: dict[Table, _Applied] = {}
        self._equal_s: dict[Table, float] = {}
        """When a table was last equal to the master's."""
        self._missing: set[Table] = set()
        self._has_offsets = bool(state.offsets.by_key)
        self._problems: dict[Table, str] = {}
        self._due_s: dict[Table, float] = {}
        self._rest_until_s: dict[Table, float] = {}
        """Until then a changed table is not read again, as that costs the master time."""
        self._announced: dict[Table, dict[str, TableChange]] = {
            Table.TOPICS: {}, Table.GROUPS: {}
        }  # fmt: skip
        """By name, until a copy has them; the newest HA_CHANGES_MAX of a table, oldest first."""
        self._reading = asyncio.Lock()
        self._wanted = asyncio.Event()
        self._lock = asyncio.Lock()

    # -- state -------------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Whether every table was applied at least once from this master."""
        done = self._applied.keys() | self._missing
        return self._master is not None and all(table in done for table in self._tables)

    @property
    def has_offsets(self) -> bool:
        """Whether the offsets were copied, from this master or before; if not, those that are not
        found here may be at the master."""
        return self._has_offsets

    def status(self) -> list[TableStatus]:
        """Every table, for operators."""
        now_s = self._now_s()
        return [
            TableStatus(
                name=table.value,
                is_applied=table in self._applied or table in self._missing,
                age_ms=int((now_s - at_s) * 1000) if at_s is not None else None,
                waits_for=self._pending.end_offset(table),
                problem=self._problems.get(table),
            )
            for table in self._tables
            for at_s in (self._equal_s.get(table),)
        ]

    def connected(self) -> None:
        """The master has accepted the slave, perhaps again: read all tables now.

        A broker that has not accepted it may be of another group; R11 does not protect from its
        tables. What waits is dropped: the log of a master that was restarted may be shorter.
        """
        self._is_connected, self._connected_to = True, self._master_address()
        self._pending.clear()
        for entries in self._announced.values():
            entries.clear()
        self._due_s.clear()
        self._wanted.set()

    # -- announcements of the master ---------------------------------------------------------------

    def announced(self, lines: bytes) -> None:
        """Entries of the master have changed: use them, and read their tables again.

        Raises ReplicationError.
        """
        for change in decode_changes(lines):
            table = Table(change.table)
            entry = change.topic or change.group
            name = (
                change.topic.topic_name
                if change.topic
                else (change.group.group_name if change.group else None)
            )
            if entry is not None and name:
                self._remember(table, name, change)
                self._put(change)
            self._due_s[table] = self._rest_until_s.get(table, 0.0)
        self._wanted.set()

    def _remember(self, table: Table, name: str, change: TableChange) -> None:
        entries = self._announced[table]
        entries.pop(name, None)
        if len(entries) >= HA_CHANGES_MAX:
            del entries[next(iter(entries))]
        entries[name] = change

    def _put(self, change: TableChange) -> None:
        topics = self._state.topics
        if change.topic is not None and change.topic.topic_name not in topics.system_names:
            topics.put(change.topic)
        if change.group is not None:
            self._state.groups.put(change.group)

    def _put_newer(self, table: Table, counter: int) -> None:
        """A copy of the master's table was applied: put what was announced after it was read."""
        entries = self._announced[table]
        for name, change in tuple(entries.items()):
            if change.counter > counter:
                self._put(change)
            else:
                del entries[name]

    async def read_final(self) -> None:
        """Read all tables of a master that changes them no more: this slave is to take over.

        They are applied as far as they can be, by `finish` at the latest. Raises TianzhouError.
        """
        async with self._reading:
            master = self._find_master()
            if master is None:
                raise RemotingError("the master's address is not known")

            async def read(table: Table) -> None:
                try:
                    copy = await tables.read_table(self._client, master, table, self._known(table))
                except TableMissing:
                    self._missing.add(table)
                else:
                    self._received(table, copy)

            await asyncio.gather(*(read(table) for table in self._tables))
            if self._find_master() != master:
                raise RemotingError("the connection to the master has ended")

    # -- running -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read and apply tables, until cancelled."""
        while True:
            try:
                self._wanted.clear()
                await self.read_due()
                await self.apply_ready()
            except Exception:
                # A bug must not end replication silently.
                log.exception("tables of the master: trying again")
                await asyncio.sleep(tables.RETRY_S)
            await self._pause()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._pause_s()):
                await self._wanted.wait()
        except TimeoutError:
            pass

    def _pause_s(self) -> float:
        if self._pending:
            return _PENDING_POLL_S
        if self._find_master() is None:
            return _IDLE_S
        first_s = min(self._due_s.values(), default=0.0)
        return min(max(first_s - self._now_s(), 0.0), _IDLE_S)

    def _find_master(self) -> Master | None:
        """The present master; the state of another one is forgotten."""
        address = self._master_address()
        if address is None or not self._is_connected:
            return None
        if self._connected_to is None:
            self._connected_to = address
        elif address != self._connected_to:
            self._is_connected = False
            return None
        master = Master(address, self._is_ours())
        if master != self._master:
            self._master = master
            self._applied.clear()
            self._missing.clear()
            self._problems.clear()
            self._equal_s.clear()
            self._pending.clear()
            self._due_s.clear()
        return master

    async def read_due(self) -> None:
        """Read the tables whose time has come; they wait until `apply_ready`."""
        for table in self._tables:
            master = self._find_master()
            if master is None:
                return
            if table not in self._pending and self._due_s.get(table, 0.0) <= self._now_s():
                async with self._reading:
                    await self._read(master, table)

    async def _read(self, master: Master, table: Table) -> None:
        began_s = self._now_s()
        self._due_s[table] = began_s + tables.APACHE_INTERVAL_S
        wait_s = tables.RETRY_S
        try:
            copy = await tables.read_table(self._client, master, table, self._known(table))
        except TableMissing as e:
            if table not in self._missing:
                log.debug("%s", e)
            self._missing.add(table)
            wait_s = tables.APACHE_INTERVAL_S
        except TianzhouError as e:
            self._failed(table, e)
        else:
            if self._find_master() != master:
                return
            took_s = self._now_s() - began_s
            wait_s = tables.next_read_s(master, took_s)
            self._rest_until_s[table] = self._now_s() + tables.rest_s(took_s)
            self._received(table, copy)
        # An announcement that came meanwhile may have made it due earlier.
        due_s = min(self._due_s.get(table, 0.0), self._now_s() + wait_s)
        self._due_s[table] = max(due_s, self._rest_until_s.get(table, 0.0))

    def _failed(self, table: Table, error: TianzhouError) -> None:
        if table not in self._problems:
            # That a master cannot be reached is logged where its log is copied.
            level = logging.DEBUG if isinstance(error, RemotingError) else logging.WARNING
            log.log(level, "tables of the master: no %s, trying again: %s", table, error)
        self._problems[table] = str(error)

    def _received(self, table: Table, copy: TableCopy | None) -> None:
        if self._problems.pop(table, None) is not None:
            log.info("tables of the master: the %s are copied again", table)
        if copy is None:
            self._equal_s[table] = self._now_s()
        else:
            self._pending.put(copy)

    def _known(self, table: Table) -> str:
        """The version to name to the master; empty if this broker has changed the table itself."""
        applied = self._applied.get(table)
        return applied.version if applied and applied.marker == self._marker(table) else ""

    def _marker(self, table: Table) -> object:
        state, scheduled = self._state, self._scheduled
        markers: dict[Table, Callable[[], object]] = {
            Table.TOPICS: lambda: state.topics.data_version,
            Table.GROUPS: lambda: state.groups.data_version,
            Table.OFFSETS: lambda: state.offsets.change_count,
            Table.DELAYS: lambda: scheduled.delays.data_version,
            Table.MODES: lambda: state.modes.change_count,
            Table.TIMER: lambda: scheduled.timer and scheduled.timer.check,
        }
        return markers[table]()

    # -- applying ----------------------------------------------------------------------------------

    async def apply_ready(self, end: int | None = None) -> None:
        """Apply the tables whose end the log has reached, and save them."""
        async with self._lock:
            ready = self._pending.ready(self._store.end_log_offset if end is None else end)
            if not ready or not await self._flushed(max(copy.end_offset for copy in ready)):
                return
            changed: set[Path] = set()
            for copy in ready:
                try:
                    changed |= await self._apply(copy)
                except BodyError as e:
                    self._failed(copy.table, e)
                else:
                    self._done(copy)
                self._pending.remove(copy)
            # Offsets are saved periodically, as on a master.
            if any(copy.table is not Table.OFFSETS for copy in ready):
                await self._state.save(*changed)

    def _done(self, copy: TableCopy) -> None:
        self._applied[copy.table] = _Applied(copy.version, self._marker(copy.table))
        self._has_offsets |= copy.table is Table.OFFSETS
        self._missing.discard(copy.table)
        self._equal_s[copy.table] = self._now_s()

    async def _flushed(self, log_offset: int) -> bool:
        try:
            await asyncio.wrap_future(self._store.flushed(log_offset))
        except StoreError as e:
            log.warning("tables of the master: not applied, the log cannot be flushed: %s", e)
            return False
        return True

    async def _apply(self, copy: TableCopy) -> set[Path]:
        """Apply a table; returns the files that must be saved besides the changed tables."""
        state, content = self._state, copy.content
        if isinstance(content, TopicConfigTable):
            state.topics.log_end = copy.end_offset
            if await finish(state.topics.replace(content)):
                log.info("topics: %d copied from the master", len(content.topics))
            self._put_newer(Table.TOPICS, content.data_version.counter)
        elif isinstance(content, SubscriptionGroupTable):
            if await finish(state.groups.replace(content)):
                log.info("groups: %d copied from the master", len(content.groups))
            self._put_newer(Table.GROUPS, content.data_version.counter)
        elif isinstance(content, ConsumerOffsetTable):
            await finish(state.offsets.put_over(content.offsets))
        elif isinstance(content, MessageRequestModeTable):
            state.modes.replace(content)
        elif isinstance(content, bytes):
            self._apply_timer(content, copy.end_offset)
            return {self._scheduled.check_path}
        else:
            self._scheduled.replace_delays(content)
            return {self._scheduled.delay_path}
        return set()

    def _apply_timer(self, content: bytes, end_offset: int) -> None:
        # Brokers of 5.0 send 32 bytes, without the version.
        decoded = decode_checkpoint(content.ljust(_CHECK_BYTES, b"\0"))
        assert decoded is not None, "it is long enough"
        is_ours = self._master is not None and self._master.is_ours
        check = decoded[0]._replace(log_end=end_offset)
        self._scheduled.replace_timer(check, is_ours=is_ours)

    async def finish(self, end: int | None = None) -> None:
        """Apply what the log allows, drop the rest, and save: the slave becomes the master.

        `end` is that of the whole log where only a part of it is shown as confirmed. What waits was
        handed out by the master when it was confirmed, and the log has it.

        To be called when `run` was cancelled and nothing is appended any more. Then the scheduled
        messages are stopped, and built again from the files.
        """
        await self.apply_ready(end)
        if self._pending:
            log.info("tables of the master: %d are newer than the log, dropped", len(self._pending))
        self._pending.clear()
        await self._state.save(*self._scheduled.encoders())
