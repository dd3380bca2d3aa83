"""The worker: runs the jobs of a console, one after the other.

`Running` is what a kind of job gets. It calls `store` after every few items, which keeps the claim
of this worker, and raises when a person has cancelled the job or another console has taken it over.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import msgspec
from sqlalchemy import Connection

from tianzhou.admin import Admin
from tianzhou.console.accounts import audit
from tianzhou.console.jobs import rows
from tianzhou.console.jobs.rows import Claimed, Item, Job, Progress
from tianzhou.console.web.ask import Console
from tianzhou.errors import DatabaseUnavailable, TianzhouError

log = logging.getLogger(__name__)

POLL_S = 5.0
"""How long a job that another console has added, or whose worker was killed, may wait."""


class JobCancelled(Exception):
    """A person has asked the job to end."""


class JobLost(Exception):
    """Another console runs the job."""


@dataclass(slots=True)
class Running:
    """A job that runs."""

    console: Console
    claimed: Claimed
    holder: str
    done: int = 0
    failed: int = 0
    total: int = 0
    results: list[Item] = field(default_factory=list[Item])
    """Results since the last `store`."""

    @property
    def job(self) -> Job:
        return self.claimed.job

    @property
    def body(self) -> bytes:
        """JSON of the struct that the job was added with."""
        return self.claimed.body

    @property
    def position(self) -> bytes:
        """JSON of the last stored position; empty at the first start."""
        return self.claimed.position

    @property
    def admin(self) -> Admin:
        """Raises TianzhouError if the console does not show this cluster any more."""
        cluster = self.console.clusters.get(self.job.cluster)
        if cluster is None:
            raise TianzhouError(
                f"the console does not show the cluster {self.job.cluster} any more"
            )
        return cluster.admin

    def item(self, subject: str, *, is_ok: bool, detail: str = "") -> None:
        """The result of one item; it is written by the next `store`."""
        self.done += 1
        self.failed += not is_ok
        self.results.append(
            Item(number=self.done, subject=subject[:255], is_ok=is_ok, detail=detail[:1000])
        )

    async def store(self, position: object, content: bytes = b"") -> None:
        """Store how far the job is, and more output. Raises JobCancelled, JobLost."""
        progress = Progress(
            position=msgspec.json.encode(position), done=self.done, failed=self.failed,
            total=max(self.total, self.done),
        )  # fmt: skip
        results, self.results = self.results, []
        number, now_ms = self.job.id, self.console.now_ms()
        is_cancelled = await self.console.database.write(
            lambda each: rows.store(each, number, self.holder, now_ms, progress, results, content)
        )
        if is_cancelled is None:
            raise JobLost
        if is_cancelled:
            raise JobCancelled


Kind = Callable[[Running], Awaitable[None]]


class Worker:
    """Runs jobs until it is cancelled."""

    def __init__(self, console: Console, kinds: Mapping[str, Kind]) -> None:
        self._console = console
        self._kinds = kinds
        self._holder = secrets.token_hex(8)

    async def run(self) -> None:
        """Run jobs as they come; a database that is away is waited for."""
        added = self._console.job_added
        # Only one console can have opened an SQLite file: jobs that run there are those of a
        # console that was killed.
        is_alone = self._console.database.engine.dialect.name == "sqlite"
        while True:
            added.clear()
            try:
                if is_alone:
                    await self._console.database.write(rows.release_all)
                    is_alone = False
                while await self.run_one():
                    pass
                await self._console.database.write(self._prune)
            except DatabaseUnavailable as e:
                log.warning("jobs wait: %s", e)
            try:
                async with asyncio.timeout(POLL_S):
                    await added.wait()
            except TimeoutError:
                pass

    def _prune(self, connection: Connection) -> None:
        rows.prune(connection, self._console.now_ms())

    async def run_one(self) -> bool:
        """Run the next job; returns whether there was one. Raises DatabaseUnavailable."""
        database, now_ms = self._console.database, self._console.now_ms()
        claimed = await database.write(lambda each: rows.claim(each, self._holder, now_ms))
        if claimed is None:
            return False
        running = Running(
            self._console, claimed, self._holder, done=claimed.job.done, failed=claimed.job.failed,
            total=claimed.job.total,
        )  # fmt: skip
        try:
            state, reason = await self._result(running)
        except JobLost:
            log.warning("job %s: another console has taken it over", claimed.job.id)
            return True
        except asyncio.CancelledError:
            # The console stops: the next one goes on at the last stored position.
            number = claimed.job.id
            await asyncio.shield(
                database.write(lambda each: rows.release(each, number, self._holder))
            )
            raise
        await self._finish(running, state, reason)
        return True

    async def _result(self, running: Running) -> tuple[str, str]:
        job = running.job
        try:
            kind = self._kinds.get(job.kind)
            if kind is None:
                return "failed", f"this release knows no jobs of kind {job.kind}"
            await kind(running)
        except JobCancelled:
            return "cancelled", ""
        except DatabaseUnavailable:
            raise
        except TianzhouError as e:
            return "failed", str(e)
        except (JobLost, asyncio.CancelledError):
            raise
        except Exception:  # a bug in one kind must not end the worker
            number = secrets.token_hex(4)
            log.exception("job %s failed (%s)", job.id, number)
            return "failed", f"the console failed here; its log has the reason under {number}"
        return "done", ""

    async def _finish(self, running: Running, state: str, reason: str) -> None:
        job, now_ms = running.job, self._console.now_ms()
        after = {"job": job.id, "done": running.done, "failed": running.failed, "state": state}
        result = "ok" if state == "done" and not running.failed else "failed"

        def write(connection: Connection) -> None:
            if rows.finish(connection, job.id, self._holder, now_ms, state, reason):
                audit.record(
                    connection, now_ms, person=job.person, token="", ip="", agent="",
                    cluster=job.cluster, verb=f"job {job.kind}", subject=str(job.title),
                    before=None, after=after, result=result, reason=reason,
                )  # fmt: skip

        await self._console.database.write(write)
