"""`tianzhou message`: send, show, query, tail and trace messages."""

import asyncio
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.progress import track
from rich.text import Text

from tianzhou.admin.message_search import (
    TimeSearch,
    follow,
    message_filter,
    search_by_time,
    select_queues,
    start_offset,
)
from tianzhou.admin.messages import TOOLS_GROUP, Sent, matching
from tianzhou.admin.redelivery import (
    CONSUMED,
    Send,
    consumption,
    push_message,
    resend,
    traced_sender,
)
from tianzhou.admin.trace import trace
from tianzhou.cli.commands.message_options import (
    ANY_SOURCE,
    BrokerName,
    Count,
    MessageFields,
    MessageId,
    MessageIds,
    MessageSource,
    QueueId,
    QueueOffset,
    QueueOption,
    read_bodies,
)
from tianzhou.cli.commands.message_output import (
    ALL_TAGS,
    UTF_8,
    Begin,
    Charset,
    End,
    Grep,
    KeyType,
    ListOptions,
    Sql,
    Tag,
    list_result,
    message_data,
    message_facts,
    message_line,
    sent_table,
    time_range,
    trace_table,
)
from tianzhou.cli.shared.command import Session, command, print_json
from tianzhou.cli.shared.common_options import Through, Topic
from tianzhou.cli.shared.output import CommandResult, format_time, plural, table_of
from tianzhou.cli.shared.parameters import argument, option
from tianzhou.errors import ConfigError, TargetError
from tianzhou.message import StoredMessage
from tianzhou.names import TRACE_TOPIC
from tianzhou.remoting.address import format_address

app = typer.Typer(name="message", no_args_is_help=True, help="Send, find and watch messages.")

# -- send ------------------------------------------------------------------------------------------


@command(
    app, "send", reads=True,
    examples=[
        "tianzhou message send orders 'hello'",
        "tianzhou message send orders 'paid' --tag paid --key order-7 --property region=eu",
        "tianzhou message send orders --file body.json",
        "cat lines.txt | tianzhou message send orders --lines     # one message per line",
        "tianzhou message send orders 'later' --delay-level 3",
    ],
)  # fmt: skip
async def send(
    session: Session,
    topic: Topic,
    body: Annotated[str | None, argument("[BODY]", "The body; - for standard input.")] = None,
    file: Annotated[Path | None, option("--file FILE", "File with the body.")] = None,
    lines: Annotated[
        bool, option("--lines", "Send each line of the file or input as a message.")
    ] = False,
    fields: MessageFields = MessageFields(),  # noqa: B008 - frozen
    count: Annotated[int, option("--count", "Number of times to send it.", min=1)] = 1,
    queue: QueueOption = None,
    broker: BrokerName = None,
    traced: Annotated[bool, option("--trace", "Write a trace, for `message trace`.")] = False,
) -> CommandResult:
    """Send messages: from the command line, a file or standard input."""
    messages = session.admin.messages
    queues = select_queues(await messages.write_queues(topic), queue, broker)
    bodies = read_bodies(body, file, lines=lines)
    outgoing = [message for message in fields.messages(topic, bodies) for _ in range(count)]
    sent: list[Sent] = []
    async with AsyncExitStack() as stack:
        put: Send = messages.send
        if traced:
            put = await stack.enter_async_context(traced_sender(session.client_settings()))
        for number, message in enumerate(
            track(outgoing, "sending", console=session.err, transient=True,
                  disable=not session.err.is_terminal or len(outgoing) < 100)
        ):  # fmt: skip
            try:
                sent.append(await put(message, queue=queues[number % len(queues)]))
            except BaseException:
                if len(outgoing) > 1:
                    session.err.print(
                        f"{len(sent)} of {len(outgoing)} messages were acknowledged before the "
                        "error; the next one may or may not be stored"
                    )
                raise
    weak = [each for each in sent if each.status != "SEND_OK"]
    notes = [f"{plural(len(sent), 'message')} sent"] if len(sent) != 1 else []
    warnings = [f"{each.message_id}: {each.status}" for each in weak]
    return CommandResult(sent, [sent_table(sent[:20])], warnings, notes=notes)


# -- show ------------------------------------------------------------------------------------------


@command(
    app, "show", reads=True,
    examples=[
        "tianzhou message show 7F0000010000E1A800000000000000FF",
        "tianzhou message show AC14000100002A139A5C0D1F7E5A0001 --topic orders",
    ],
)  # fmt: skip
async def show_message(
    session: Session,
    message_ids: MessageIds,
    source: MessageSource = ANY_SOURCE,
    charset: Charset = UTF_8,
) -> CommandResult:
    """Show messages, and which groups have consumed them."""
    data: list[dict[str, object]] = []
    sections: list[RenderableType] = []
    for message_id in message_ids:
        message = await source.find(session, message_id)
        tracks = await consumption(session.admin, message, source.through)
        sections += message_facts(message, charset)
        if tracks:
            sections.append(table_of(tracks, "group, state, >committed", title="Consumed by"))
        data.append(message_data(message, charset=charset) | {"groups": tracks})
    return CommandResult(data[0] if len(data) == 1 else data, sections)


@command(
    app, "at", reads=True,
    examples=["tianzhou message at orders --broker broker-a --queue 0 --offset 1200 --count 5"],
)  # fmt: skip
async def show_at_offset(
    session: Session,
    topic: Topic,
    broker: Annotated[str, option("--broker, -b NAME", "The broker.")],
    queue: QueueId,
    queue_offset: QueueOffset,
    count: Count = 1,
    charset: Charset = UTF_8,
    through: Through = None,
) -> CommandResult:
    """Show the messages at an offset of a queue."""
    messages = session.admin.messages
    (at,) = select_queues(await messages.read_queues(topic, through), queue, broker)
    name = at.broker.name
    if count == 1:
        message = await messages.at(at, queue_offset)
        one = message_data(message, name, charset=charset)
        return CommandResult(one, message_facts(message, charset))
    found = [each async for each in messages.walk(at, queue_offset, queue_offset + count)]
    lines = [message_line(each, name, charset) for each in found]
    data = [message_data(each, name, charset=charset) for each in found]
    return CommandResult(
        data, notes=[line.plain for line in lines] or ["no message at this offset"]
    )


@command(
    app, "entries", reads=True,
    examples=["tianzhou message entries orders --broker broker-a --queue 0 --offset 0"],
)  # fmt: skip
async def show_entries(
    session: Session,
    topic: Topic,
    queue: QueueId,
    queue_offset: QueueOffset,
    broker: Annotated[
        str | None, option("--broker, -b NAME|ADDR", "Default: the first broker.")
    ] = None,
    count: Count = 10,
    group: Annotated[
        str | None, option("--group", "Also show whether the filter of this group selects them.")
    ] = None,
) -> CommandResult:
    """Show the consume queue entries of a queue: log offset, size, tag hash."""
    messages = session.admin.messages
    at, *_ = select_queues(await messages.read_queues(topic), queue, broker)
    result = await messages.entries(at, queue_offset, count, group)
    data = [
        {
            "queue_offset": queue_offset + number, "log_offset": each.log_offset,
            "size_bytes": each.size_bytes, "tags_code": each.tags_code, "matches": each.matches,
        }
        for number, each in enumerate(result.entries or ())
    ]  # fmt: skip
    shown = table_of(
        data,
        ">queue_offset=offset, >log_offset, >size_bytes=bytes, >tags_code=tag hash, "
        "matches=selected",
    )
    notes = [f"the queue holds {result.min_queue_index:,} to {result.max_queue_index:,}"]
    return CommandResult(data, [shown] if data else [], notes=notes)


# -- query -----------------------------------------------------------------------------------------


@command(
    app, "query", reads=True,
    examples=[
        "tianzhou message query orders --key order-7",
        "tianzhou message query orders --unique-key AC14000100002A139A5C0D1F7E5A0001",
        "tianzhou message query orders --from 10m --sql \"amount > 100\" --limit 20",
        "tianzhou message query orders --from '2026-01-31 08:00' --to '2026-01-31 09:00'",
        "tianzhou message query orders --from 1h --count-tags --no-list",
    ],
)  # fmt: skip
async def query(
    session: Session,
    topic: Topic,
    key: Annotated[str | None, option("--key", "Find by message key.")] = None,
    unique_key: Annotated[
        str | None, option("--unique-key", "Find by the message id of the producer.")
    ] = None,
    key_type: Annotated[
        KeyType, option("--key-type", "Type of --key: K a key, T a tag (5.5).")
    ] = KeyType.KEY,
    last_key: Annotated[
        str | None, option("--last-key", "With --key: continue after this one (5.5).")
    ] = None,
    begin: Begin = None,
    end: End = None,
    tag: Tag = ALL_TAGS,
    sql: Sql = None,
    grep: Grep = None,
    queue: QueueOption = None,
    broker: BrokerName = None,
    queue_offset: Annotated[
        int, option("--offset", "With --from and --queue: first queue offset.", min=0)
    ] = 0,
    group: Annotated[
        str, option("--group GROUP", "With --from: consumer group to use.")
    ] = TOOLS_GROUP,
    limit: Annotated[int, option("--limit", "Maximum number.", min=1)] = 64,
    through: Through = None,
    listing: ListOptions = ListOptions(),  # noqa: B008 - frozen
) -> CommandResult:
    """Find messages by key, by message id, or by store time."""
    if key is not None and unique_key is not None:
        raise ConfigError("--key and --unique-key exclude each other; pass either one")
    if key is None and unique_key is None and begin is None:
        raise ConfigError("pass one of: --key, --unique-key, --from TIME")
    messages = session.admin.messages
    wanted = matching(tag, message_filter(sql, grep))
    begin_ms, end_ms = time_range(session.now_ms, begin, end)
    if key is not None or unique_key is not None:
        result = await messages.by_key(
            topic, key or unique_key or "", max_count=limit, begin_ms=begin_ms, end_ms=end_ms,
            unique=unique_key is not None, by_tag=key_type is KeyType.TAG, last_key=last_key,
            through=through, broker=broker,
            matches=lambda each: wanted(each) and queue in (None, each.queue_id),
        )  # fmt: skip
        by_key = [(format_address(*each.store_host), each) for each in result.messages]
        return list_result(by_key, listing, result.warnings)
    queues = select_queues(await messages.read_queues(topic, through), queue, broker)
    if queue_offset and len(queues) != 1:
        raise ConfigError("--offset applies to one queue: add --queue and --broker")
    search = TimeSearch(begin_ms, end_ms, queue_offset, tag, wanted, group)
    found: list[tuple[str, StoredMessage]] = []
    async with aclosing(search_by_time(session.admin, queues, search)) as walking:
        async for name, message in walking:
            found.append((name, message))
            if len(found) >= limit:
                break
    return list_result(found, listing)


# -- redelivery ------------------------------------------------------------------------------------


@command(
    app, "resend", reads=True,
    examples=["tianzhou message resend AC14000100002A139A5C0D1F7E5A0001 --topic orders"],
)  # fmt: skip
async def resend_messages(
    session: Session, message_ids: MessageIds, source: MessageSource = ANY_SOURCE
) -> CommandResult:
    """Send stored messages to their topic again; every group receives them again."""
    sent = [await resend(session.admin, await source.find(session, each)) for each in message_ids]
    return CommandResult(sent, [sent_table(sent)])


@command(
    app, "recall", destroys=True,
    examples=["tianzhou message recall AC14000100002A139A5C0D1F7E5A0001 --topic reminders --yes"],
)  # fmt: skip
async def recall(
    session: Session,
    message_ids: MessageIds,
    topic: Annotated[str, option("--topic TOPIC", "Topic of the messages.")],
) -> None:
    """Recall timed messages before their delivery time; they are not delivered.

    Not for delay levels; the broker needs recallMessageEnable=true.
    """
    messages = session.admin.messages
    found = {each: await messages.find_scheduled(topic, each) for each in message_ids}
    first = format_time(min(each.deliver_ms for each in found.values()))
    count = plural(len(found), "message")
    if not session.confirm(f"recall {count} of {topic}, due from {first} on"):
        return
    for message_id, waiting in found.items():
        await messages.recall(topic, waiting)
        session.print(f"{message_id}: recalled on {waiting.broker.name}")


@command(
    app, "push", reads=True,
    examples=[
        "tianzhou message push AC14000100002A139A5C0D1F7E5A0001 --topic orders --group billing "
        "--client 10.0.0.9@7",
    ],
)  # fmt: skip
async def push(
    session: Session,
    message_ids: MessageIds,
    group: Annotated[str, option("--group GROUP", "The consumer group.")],
    client_id: Annotated[
        str, option("--client ID", "Client id of the member, see `group members`.")
    ],
    source: MessageSource = ANY_SOURCE,
) -> CommandResult:
    """Have one member of a group consume messages now, and show the result.

    Offsets do not move, and no other member receives the messages.
    """
    rows = [
        await push_message(
            session.admin, group, client_id, await source.find(session, each), source.through
        )
        for each in message_ids
    ]
    columns = "!id, result, >took_ms, ordered=in order, remark"
    shown = table_of(rows, columns, title=f"{group}, {client_id}")
    is_done = all(each.result in CONSUMED for each in rows)
    return CommandResult(rows, [shown], exit_code=0 if is_done else 1)


# -- tail ------------------------------------------------------------------------------------------


@command(
    app, "tail", reads=True, endless=True,
    examples=[
        "tianzhou message tail orders",
        "tianzhou message tail orders --tag 'paid || sent' --grep 'order-[0-9]+'",
        "tianzhou message tail orders --sql \"amount > 100 AND region = 'eu'\" --json",
        "tianzhou message tail orders --since 10m --count 100",
    ],
)  # fmt: skip
async def tail(
    session: Session,
    topic: Topic,
    tag: Tag = ALL_TAGS,
    sql: Sql = None,
    grep: Grep = None,
    since: Annotated[
        str | None, option("--since TIME", "Start at this time; 'earliest' for all.")
    ] = None,
    count: Annotated[int | None, option("--count", "Exit after this many messages.", min=1)] = None,
    idle_s: Annotated[
        float | None, option("--idle SECONDS", "Exit after this time without a message.", min=0.1)
    ] = None,
    queue: QueueOption = None,
    broker: BrokerName = None,
) -> None:
    """Print messages as they arrive, until Ctrl-C; commits no offset, disturbs no consumer."""
    matches = message_filter(sql, grep)
    messages = session.admin.messages
    queues = select_queues(await messages.read_queues(topic), queue, broker)
    begin_ms = None if since is None else time_range(session.now_ms, since, None)[0]
    starts = [(at, await start_offset(session.admin.offsets, at, begin_ms)) for at in queues]
    session.err.print(
        Text(f"{topic}: {plural(len(queues), 'queue')}, Ctrl-C to stop", style="dim"),
        soft_wrap=True,
    )
    shown = 0
    async with aclosing(follow(messages, starts, tags=tag, matches=matches)) as arriving:
        while count is None or shown < count:
            try:
                async with asyncio.timeout(idle_s):
                    at, message = await anext(arriving)
            except TimeoutError:
                break
            shown += 1
            if session.options.as_json:
                print_json(message_data(message, at.broker.name), lines=True)
            else:
                session.out.print(message_line(message, at.broker.name), soft_wrap=True)


# -- trace -----------------------------------------------------------------------------------------


@command(
    app, "trace", reads=True, examples=["tianzhou message trace AC14000100002A139A5C0D1F7E5A0001"]
)
async def show_trace(
    session: Session,
    message_id: MessageId,
    trace_topic: Annotated[
        str, option("--trace-topic TOPIC", "Topic of the traces.")
    ] = TRACE_TOPIC,
    begin: Begin = None,
    end: End = None,
    limit: Annotated[int, option("--limit", "Maximum number of trace records.", min=1)] = 64,
) -> CommandResult:
    """Show the trace of a message: sent and consumed by which clients, and when."""
    begin_ms, end_ms = time_range(session.now_ms, begin, end)
    try:
        events = await trace(
            session.admin.messages, message_id, topic=trace_topic, max_count=limit,
            begin_ms=begin_ms, end_ms=end_ms,
        )  # fmt: skip
    except TargetError as e:
        raise TargetError(
            f"no broker has the topic {trace_topic}: set traceTopicEnable=true on one, or pass "
            "--trace-topic"
        ) from e
    if not events:
        raise TargetError(
            f"no trace of {message_id} in {trace_topic}: its clients do not trace, or the traces "
            "are not written yet"
        )
    return CommandResult(events, [trace_table(events)])
