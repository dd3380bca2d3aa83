"""Jobs: beginning one from a change, and cancelling one."""

import asyncio

import msgspec

from tianzhou.console.changes.addresses import below
from tianzhou.console.jobs import rows
from tianzhou.console.text import Text
from tianzhou.console.views.jobs import job_of
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.refusals import Conflict, TooMany
from tianzhou.console.web.route import Done, Plan, PlanRow, Prepared

AT_ONCE_MAX = 100
"""A job with at most so many items is waited for."""
WAIT_S = 2.0
_POLL_S = 0.05


async def begin(
    ask: Ask, kind: str, subject: str, title: Text, body: msgspec.Struct, total: int,
    output_name: str = "",
) -> Done:  # fmt: skip
    """Add a job, and wait for it if it is short; goes on at its page. Raises TooMany."""
    cluster, person, now_ms = ask.cluster.name, ask.person.login, ask.now_ms
    number = await ask.database.write(
        lambda each: rows.add(
            each, now_ms, kind=kind, cluster=cluster, person=person, title=title, body=body,
            total=total, output_name=output_name,
        )
    )  # fmt: skip
    if not number:
        text = Text("{n} jobs wait already; try again when some have ended.",
                    n=rows.JOBS_MAX)  # fmt: skip
        raise TooMany(text, retry_s=30)
    ask.console.job_added.set()
    if total <= AT_ONCE_MAX:
        await _wait(ask, number)
    return Done(
        subject=subject, notice=Text("Job {id} was started.", id=number),
        location=below(ask, "/c/{}/jobs/{}", cluster, number),
        after={"job": number, "items": total}, result={"job": number},
    )  # fmt: skip


async def _wait(ask: Ask, number: int) -> None:
    """Wait a moment for a short job."""
    cluster = ask.cluster.name
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + WAIT_S
    while loop.time() < deadline_s:
        job = await ask.database.read(lambda each: rows.by_id(each, cluster, number))
        if job is None or job.is_ended:
            return
        await asyncio.sleep(_POLL_S)


class CancelJob(msgspec.Struct, frozen=True, kw_only=True):
    """A change without fields."""


async def cancel(ask: Ask, given: CancelJob) -> Prepared:
    """Ask a job to end; what it has done stays done."""
    job = await job_of(ask)
    if job.is_ended:
        raise Conflict(Text("The job {id} has ended already.", id=job.id))
    plan = Plan(
        title=Text("Cancel the job {id}", id=job.id),
        rows=(
            PlanRow(
                subject=str(job.title), what=Text("State"), before=job.state, after="cancelled"
            ),
        ),
        warnings=(Text("What it has done stays done: {done} of {total}.",
                       done=job.done, total=job.total),),
        button=Text("Cancel the job"),
    )  # fmt: skip

    async def execute() -> Done:
        now_ms = ask.now_ms
        await ask.database.write(lambda each: rows.cancel(each, job.id, now_ms))
        return Done(
            subject=f"{job.id} {job.title}", notice=Text("The job {id} ends.", id=job.id),
            location=below(ask, "/c/{}/jobs/{}", ask.cluster.name, job.id), before=job,
        )  # fmt: skip

    return Prepared(plan, execute)
