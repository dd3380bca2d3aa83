"""Output of the group commands: JSON data and tables."""

from rich.console import RenderableType
from rich.text import Text

from tianzhou.admin.group_overview import GroupOverview, QueueProgress, model_name
from tianzhou.cli.shared.output import format_duration, format_time, highlight, key_values, table
from tianzhou.protocol.bodies.clients import ConsumerRunningInfo, ProcessQueueInfo
from tianzhou.protocol.bodies.queues import MessageQueue


def overview_data(overview: GroupOverview) -> dict[str, object]:
    """A group as JSON data."""
    return {
        "group": overview.group,
        "lag": overview.lag_count,
        "consume_tps": overview.consume_tps,
        "model": model_name(overview.message_model),
        "consume_type": overview.consume_type,
        "consume_from": overview.consume_from,
        "subscriptions": dict(overview.subscriptions),
        "members": [
            {
                "client_id": member.client_id, "address": member.address,
                "language": member.language, "version": member.version,
                "brokers": list(member.brokers),
                "subscriptions": None if member.subscriptions is None
                else dict(member.subscriptions),
                "queues": len(member.queues),
            }
            for member in overview.members
        ],
        "contradictions": [
            {"topic": each.topic, "sides": {what: list(who) for what, who in each.sides.items()}}
            for each in overview.conflicts
        ],
        "queues": [
            {
                "topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id,
                "end": queue.end_offset, "committed": queue.committed_offset,
                "lag": queue.lag_count, "last_time_ms": queue.last_time_ms,
                "client_id": queue.client_id,
            }
            for queue in overview.queues
        ],
        "settings": {
            name: {
                "consume": config.consume_enable, "broadcast": config.consume_broadcast_enable,
                "from_min": config.consume_from_min_enable, "retries": config.retry_max_times,
                "retry_queues": config.retry_queue_count, "broker_id": config.broker_id,
                "broker_id_when_slow": config.which_broker_when_consume_slowly,
                "orderly": config.consume_orderly,
                "notify": config.notify_consumer_ids_changed_enable,
                "attributes": config.attributes or {},
            }
            for name, config in overview.configs.items()
        },
    }  # fmt: skip


def head(overview: GroupOverview) -> RenderableType:
    settings = {
        f"up to {config.retry_max_times} retries"
        + ("" if config.consume_enable else ", consuming disabled")
        for config in overview.configs.values()
    }
    subscriptions = (f"{topic} [{text}]" for topic, text in overview.subscriptions.items())
    model = model_name(overview.message_model)
    return key_values(
        [
            ("lag", highlight(overview.lag_count)),
            ("consumed", f"{overview.consume_tps:,.1f}/s"),
            ("members", len(overview.members)),
            ("model", f"{model}, {overview.consume_from}" if model else None),
            ("subscriptions", ", ".join(subscriptions) or None),
            ("settings", "; ".join(sorted(settings)) or "none (created by its first consumer)"),
            ("brokers", ", ".join(overview.configs) or None),
        ],
        title=f"Group {overview.group}",
    )


def members_table(overview: GroupOverview) -> RenderableType:
    disputed = {each.topic for each in overview.conflicts}

    def filters(subscriptions: dict[str, str] | None) -> Text | None:
        if subscriptions is None:
            return None
        lines = Text()
        for topic, text in subscriptions.items():
            style = "bold red" if topic in disputed else ""
            lines.append(("\n" if lines else "") + f"{topic} [{text}]", style=style)
        return lines

    return table(
        ["client id", "address", "language", "version", ">queues", "subscribes to"],
        (
            (
                member.client_id, member.address, member.language.lower(), member.version,
                len(member.queues),
                filters(None if member.subscriptions is None else dict(member.subscriptions)),
            )
            for member in overview.members
        ),
    )  # fmt: skip


def lag_table(queues: tuple[QueueProgress, ...], now_ms: int) -> RenderableType:
    return table(
        ["topic", "!broker", ">queue", ">end", ">committed", ">lag", ">behind", "held by"],
        (
            (
                queue.topic, queue.broker_name, queue.queue_id, queue.end_offset,
                queue.committed_offset, highlight(queue.lag_count), _behind(queue, now_ms),
                queue.client_id,
            )
            for queue in queues
        ),
    )  # fmt: skip


def _behind(queue: QueueProgress, now_ms: int) -> str | None:
    """Age of the last consumed message if the queue has a backlog."""
    if not queue.lag_count or queue.last_time_ms <= 0:
        return None
    return format_duration(max(now_ms - queue.last_time_ms, 0))


# -- members ---------------------------------------------------------------------------------------


def _queues_of(info: ConsumerRunningInfo) -> list[tuple[MessageQueue, ProcessQueueInfo]]:
    return sorted(info.queues.items(), key=lambda pair: (pair[0].topic or "", pair[0].queue_id))


def running_data(name: str, info: ConsumerRunningInfo) -> dict[str, object]:
    """The running info of a member as JSON data."""
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
    """The running info of a member as tables."""
    queues = table(
        ["topic", "!broker", ">queue", ">committed", ">cached", ">MiB", "last pulled"],
        (
            (
                queue.topic, queue.broker_name, queue.queue_id, each.commit_offset,
                each.cached_count, each.cached_size_mib, format_time(each.last_pull_timestamp),
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
