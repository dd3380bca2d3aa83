"""What a member of a group tells of itself, for programs and for people."""

from rich.console import RenderableType

from tianzhou.cli.shared.output import moment, table
from tianzhou.protocol.bodies.clients import ConsumerRunningInfo, ProcessQueueInfo
from tianzhou.protocol.bodies.queues import MessageQueue


def _queues_of(info: ConsumerRunningInfo) -> list[tuple[MessageQueue, ProcessQueueInfo]]:
    return sorted(info.queues.items(), key=lambda pair: (pair[0].topic or "", pair[0].queue_id))


def running_data(name: str, info: ConsumerRunningInfo) -> dict[str, object]:
    """What a member tells, for programs."""
    queues = [
        {
            "topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id,
            "committed": each.commit_offset, "waiting": each.cached_count,
            "last_pull_ms": each.last_pull_timestamp,
        }
        for queue, each in _queues_of(info)
    ]  # fmt: skip
    return {
        "client_id": name,
        "properties": info.properties,
        "queues": queues,
        "topics": info.statuses,
        "stacks": info.jstack,
    }


def running_tables(name: str, info: ConsumerRunningInfo) -> list[RenderableType]:
    """What a member tells, for people."""
    queues = table(
        ["topic", "!broker", ">queue", ">committed", ">waiting", ">MiB", "last pulled"],
        (
            (
                queue.topic, queue.broker_name, queue.queue_id, each.commit_offset,
                each.cached_count, each.cached_size_mib, moment(each.last_pull_timestamp),
            )
            for queue, each in _queues_of(info)
        ),
        title=name,
    )  # fmt: skip
    rates = table(
        ["topic", ">pulled/s", ">consumed/s", ">failed/s", ">ms to consume"],
        (
            (topic, each.pull_tps, each.consume_ok_tps, each.consume_failed_tps, each.consume_ms)
            for topic, each in sorted(info.statuses.items())
        ),
    )
    return [queues, rates] if info.statuses else [queues]
