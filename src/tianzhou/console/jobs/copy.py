"""Copying topics and groups to brokers that lack them, one by one."""

import msgspec

from tianzhou.admin.changes.expansion import Copied, copy, expansion
from tianzhou.console.jobs.worker import Running

STORE_EVERY = 10


class CopyItem(msgspec.Struct, frozen=True, array_like=True):
    """A topic or group, and the broker that lacks it."""

    broker: str
    kind: str
    name: str


class CopyMissing(msgspec.Struct, frozen=True, kw_only=True):
    """What to copy."""

    items: tuple[CopyItem, ...]


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """How many items are done."""

    item: int = 0


async def run(running: Running) -> None:
    """Copy until all are done; what a broker has got meanwhile is not changed.

    Raises JobCancelled, JobLost, TianzhouError.
    """
    items = msgspec.json.decode(running.body, type=CopyMissing).items
    position = Position()
    if running.position:
        position = msgspec.json.decode(running.position, type=Position)
    running.total = len(items)
    state = await expansion(running.admin)
    missing = {(each.target.label, each.kind, each.name): each for each in state.missing}
    answered = {at.label for at in state.brokers}
    for start in range(position.item, len(items), STORE_EVERY):
        part = items[start : start + STORE_EVERY]
        for item in part:
            each = missing.get((item.broker, item.kind, item.name))
            subject = f"{item.broker} {item.kind} {item.name}"
            if item.broker not in answered:
                running.item(subject, is_ok=False, detail="the broker does not answer")
            elif each is None:
                running.item(subject, is_ok=True, detail="the broker has it already")
            else:
                (result,) = await copy(running.admin, [each])
                _record(running, subject, result)
        await running.store(Position(item=start + len(part)))


def _record(running: Running, subject: str, result: Copied) -> None:
    detail = result.problem or f"copied from {result.missing.source.label}"
    running.item(subject, is_ok=not result.problem, detail=detail)
