"""Examining a cluster now: one at a time, once a minute."""

from tianzhou.console.changes.cluster import Nothing, alone
from tianzhou.console.changes.jobs import begin
from tianzhou.console.jobs import doctor as examination
from tianzhou.console.jobs import rows
from tianzhou.console.text import Text
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.refusals import Conflict, TooMany
from tianzhou.console.web.route import Done, Plan, Prepared

EVERY_MS = 60_000


async def run(ask: Ask, given: Nothing) -> Prepared:
    """Examine the cluster; it only reads."""
    await _check(ask)
    plan = Plan(title=Text("Examine the cluster"), button=Text("Run now"))

    async def execute() -> Done:
        async with alone(ask, "doctor"):
            await _check(ask)
            # Not a short job: the request does not wait for it.
            return await begin(
                ask,
                "doctor",
                ask.cluster.name,
                Text("Examine the cluster"),
                examination.Examine(),
                1000,
                output_name=examination.OUTPUT_NAME,
            )

    return Prepared(plan, execute)


async def _check(ask: Ask) -> None:
    cluster = ask.cluster.name
    jobs = await ask.database.read(lambda each: rows.listed(each, cluster))
    own = [each for each in jobs if each.kind == "doctor"]
    if any(not each.is_ended for each in own):
        raise Conflict(Text("The cluster is being examined already."))
    latest = max((each.created_ms for each in own), default=None)
    if latest is not None and ask.now_ms - latest < EVERY_MS:
        left_s = max(1, (EVERY_MS - ask.now_ms + latest) // 1000)
        raise TooMany(Text("The cluster is examined once a minute at most."), retry_s=left_s)
