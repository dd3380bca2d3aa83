"""Output of the group commands: JSON data and tables."""

from collections.abc import Mapping

from rich.console import RenderableType
from rich.text import Text

from tianzhou.admin.group_detail import GroupOverview, QueueProgress, model_name
from tianzhou.cli.shared.output import (
    format_duration,
    format_time,
    highlight,
    key_values,
    table,
    table_of,
)
from tianzhou.protocol.bodies.clients import ConsumerRunningInfo


def progress_data(queue: QueueProgress) -> dict[str, object]:
    """The progress of a group in a queue as JSON data."""
    return {
        "topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id,
        "end": queue.end_offset, "committed": queue.committed_offset, "lag": queue.lag_count,
        "last_time_ms": queue.last_time_ms,
    }  # fmt: skip


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
            progress_data(queue) | {"client_id": queue.client_id} for queue in overview.queues
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

    def filters(subscriptions: Mapping[str, str] | None) -> Text | None:
        if subscriptions is None:
            return None
        lines = Text()
        for topic, text in subscriptions.items():
            style = "bold red" if topic in disputed else ""
            lines.append(("\n" if lines else "") + f"{topic} [{text}]", style=style)
        return lines

    return table_of(
        overview.members,
        "client_id, address, language, version, >queues, subscriptions=subscribes to",
        language=str.lower,
        queues=len,
        subscriptions=filters,
    )


def lag_table(queues: tuple[QueueProgress, ...], now_ms: int) -> RenderableType:
    rows = (
        progress_data(queue) | {"behind": _behind(queue, now_ms), "client_id": queue.client_id}
        for queue in queues
    )
    return table_of(
        rows,
        "topic, !broker, >queue, >end, >committed, >lag, >behind, client_id=held by",
        lag=highlight,
    )


def _behind(queue: QueueProgress, now_ms: int) -> str | None:
    """Age of the last consumed message if the queue has a backlog."""
    if not queue.lag_count or queue.last_time_ms <= 0:
        return None
    return format_duration(max(now_ms - queue.last_time_ms, 0))


# -- members ---------------------------------------------------------------------------------------


def running_info(
    name: str, info: ConsumerRunningInfo
) -> tuple[dict[str, object], list[RenderableType]]:
    """The running info of a member as JSON data and as tables."""
    held = sorted(info.queues.items(), key=lambda pair: (pair[0].topic or "", pair[0].queue_id))
    queues = [
        {
            "topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id,
            "committed": each.commit_offset, "waiting": each.cached_count,
            "last_pull_ms": each.last_pull_timestamp,
        }
        for queue, each in held
    ]  # fmt: skip
    rows = (
        row | {"mib": each.cached_size_mib} for row, (_, each) in zip(queues, held, strict=True)
    )
    columns = (
        "topic, !broker, >queue, >committed, >waiting=cached, >mib=MiB, last_pull_ms=last pulled"
    )
    sections = [table_of(rows, columns, title=name, last_pull_ms=format_time)]
    if info.statuses:
        rates = table(
            ["topic", ">pulled/s", ">consumed/s", ">failed/s", ">ms to consume"],
            (
                (
                    topic,
                    each.pull_tps,
                    each.consume_ok_tps,
                    each.consume_failed_tps,
                    each.consume_ms,
                )
                for topic, each in sorted(info.statuses.items())
            ),
        )
        sections.append(rates)
    data: dict[str, object] = {
        "client_id": name, "properties": info.properties, "queues": queues,
        "topics": info.statuses, "stacks": info.jstack,
    }  # fmt: skip
    return data, sections
