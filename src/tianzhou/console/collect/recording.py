"""What the leader of a cluster writes after a round, and what a follower reads.

One transaction holds the snapshot, the samples and the daily counts, and the check that the lease
is still held. If the database does not answer, nothing is lost but the samples of these minutes:
counts stay in memory with their marks and are written by the next round that can.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta

from sqlalchemy import Engine, select
from sqlalchemy.exc import SQLAlchemyError

from tianzhou.console.collect import daily, leases, member_events, tables
from tianzhou.console.collect.counting import Ledger
from tianzhou.console.collect.days import Days
from tianzhou.console.collect.history import MINUTE_MS, History, Sample, SeriesName
from tianzhou.console.collect.snapshot import Snapshot, pack, unpack
from tianzhou.errors import BodyError
from tianzhou.monitor.database import database_error, reading, upsert

log = logging.getLogger(__name__)

PENDING_MAX = 60
"""Rounds whose samples wait for the database; the oldest are dropped."""
DAYS_KEPT = 400
"""Days whose counts are kept."""


def lease_of(cluster: str) -> str:
    """The name of the lease of a cluster's collector."""
    return f"collect:{cluster}"


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a write."""

    problem: str = ""
    is_lease_lost: bool = False


class Recorder:
    """The rows of one cluster. Use it from one thread at a time."""

    def __init__(
        self, engine: Engine, cluster: str, holder: str, *, lease_ms: int = leases.LEASE_MS
    ) -> None:
        self._engine = engine
        self._lease_ms = lease_ms
        self._cluster = cluster
        self._holder = holder
        self._history = History(cluster)
        self._pending: list[tuple[int, Mapping[SeriesName, Sample]]] = []
        self._expired_hour = 0
        self._members: member_events.Members | None = None
        """As of the last round that was written; None: not read yet."""

    # -- leases ------------------------------------------------------------------------------------

    def acquire(self) -> bool:
        """Get or renew the lease. Raises SQLAlchemyError."""
        name = lease_of(self._cluster)
        return leases.acquire(self._engine, name, self._holder, self._lease_ms)

    def release(self) -> None:
        """Give it up. Raises SQLAlchemyError."""
        leases.release(self._engine, lease_of(self._cluster), self._holder)

    # -- reading -----------------------------------------------------------------------------------

    def load(self, from_day: str) -> Ledger:
        """The daily counts. Raises SQLAlchemyError, BodyError."""
        return daily.load(self._engine, self._cluster, from_day)

    def newer_than(self, version: int) -> Snapshot | None:
        """The snapshot in the database if it is newer. Raises SQLAlchemyError."""
        table = tables.snapshots
        wanted = (table.c.cluster == self._cluster) & (table.c.version > version)
        with reading(self._engine) as connection:
            body = connection.execute(select(table.c.body).where(wanted)).scalar_one_or_none()
        if body is None:
            return None
        try:
            return unpack(body)
        except BodyError as e:
            # Of another release; the next round replaces it.
            log.warning("cluster %s: snapshot in the database: %s", self._cluster, e)
            return None

    # -- writing -----------------------------------------------------------------------------------

    def add_samples(self, at_ms: int, samples: Mapping[SeriesName, Sample]) -> None:
        """Samples of a round, to be written."""
        self._pending.append((at_ms // MINUTE_MS, samples))
        del self._pending[:-PENDING_MAX]

    def write(self, snapshot: Snapshot, ledger: Ledger, days: Days) -> Written:
        """Write everything of a round; the ledger is not used by another thread meanwhile."""
        changes = daily.changes_of(ledger)
        try:
            if self._members is None:
                last = self.newer_than(0)
                self._members = {} if last is None else member_events.members_in(last, {})
            with self._engine.begin() as connection:
                leases.require(connection, lease_of(self._cluster), self._holder)
                row = {
                    "cluster": self._cluster, "version": snapshot.version,
                    "at_ms": snapshot.as_of_ms, "body": pack(snapshot),
                }  # fmt: skip
                upsert(connection, tables.snapshots, [row])
                daily.write(connection, self._cluster, changes, snapshot.as_of_ms)
                for minute, samples in self._pending:
                    self._history.write(connection, minute, samples)
                events = member_events.events_between(self._members, snapshot)
                member_events.write(connection, self._cluster, events)
        except leases.LeaseLost as e:
            self._history.reset()
            return Written(str(e), is_lease_lost=True)
        except SQLAlchemyError as e:
            self._history.reset()
            return Written(str(database_error(str(self._engine.url), e)))
        daily.written(ledger, changes)
        self._members = member_events.members_in(snapshot, self._members)
        ledger.forget_days(days.yesterday)
        self._pending.clear()
        return Written(self._tidy(snapshot.as_of_ms, days))

    def _tidy(self, now_ms: int, days: Days) -> str:
        """Roll hours up and delete what is old, in transactions of their own."""
        try:
            with self._engine.begin() as connection:
                self._history.roll_up(connection, now_ms)
            if self._expired_hour != now_ms // 3_600_000:
                with self._engine.begin() as connection:
                    deleted = self._history.expire(connection, now_ms)
                    oldest = date.fromisoformat(days.today) - timedelta(days=DAYS_KEPT)
                    daily.expire(connection, self._cluster, oldest.isoformat())
                    member_events.expire(connection, self._cluster, now_ms)
                if not deleted:
                    self._expired_hour = now_ms // 3_600_000
        except SQLAlchemyError as e:
            self._history.reset()
            return str(database_error(str(self._engine.url), e))
        return ""
