"""Consumer offsets: reading them, and moving them with or without consumers online.

Brokers of 5.x (and ours) move offsets themselves, for one queue or all, to a time or an offset;
consumers get it with the next pull. Brokers of 4.9 only accept a time and push the new offsets to
the members; without members they refuse, and the offsets are committed one by one. Moving to an
offset is not possible on 4.9 while members are online: they would overwrite it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tianzhou.admin.fanout import BrokerRef
from tianzhou.admin.groups import Groups
from tianzhou.admin.requests import RequestClient
from tianzhou.admin.topics import Topics
from tianzhou.errors import RequestError, TargetError
from tianzhou.protocol import bodies, headers
from tianzhou.protocol.bodies.offsets import ConsumerOffsetTable, ResetOffsetBody
from tianzhou.protocol.bodies.queues import MessageQueue
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Language
from tianzhou.protocol.headers.offsets import (
    CloneGroupOffsetRequest,
    GetMaxOffsetRequest,
    OffsetResponse,
    QueryConsumerOffsetRequest,
    QueueRequest,
    ResetOffsetRequest,
    SearchOffsetRequest,
    UpdateConsumerOffsetRequest,
)

LATEST_MS = -1
"""As a time: the end of the queue."""
EARLIEST_MS = 0
"""As a time: before every message, hence the beginning."""
_MOVES_SINGLE_QUEUES = (b"useServerSideResetOffset=true", b"maxParkedPulls=")
"""Settings that identify a broker with this ability: one of 5.x, and one of Tianzhou."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The target of a move: a time, or an offset of one queue."""

    time_ms: int = LATEST_MS
    queue_id: int | None = None
    queue_offset: int | None = None
    for_cpp: bool = False
    """Whether the online consumers are C++ clients: an Apache broker notifies them in the format of
    the language of this request. Tianzhou brokers use the language of each client."""


@dataclass(frozen=True, slots=True)
class Move:
    """The change of one queue by a move, done or planned."""

    queue: MessageQueue
    before: int | None
    after: int
    pushed: bool = False
    """Whether online consumers were notified."""


class Offsets:
    """Requests about offsets."""

    def __init__(self, wire: RequestClient, topics: Topics, groups: Groups) -> None:
        self._requests = wire
        self._topics = topics
        self._groups = groups

    # -- of queues ---------------------------------------------------------------------------------

    async def end(self, broker: BrokerRef, topic: str, queue_id: int) -> int:
        """GET_MAX_OFFSET: the offset of the next message."""
        header = GetMaxOffsetRequest(topic=topic, queue_id=queue_id)
        return await self._offset(broker, RequestCode.GET_MAX_OFFSET, header)

    async def begin(self, broker: BrokerRef, topic: str, queue_id: int) -> int:
        """GET_MIN_OFFSET: the offset of the oldest message."""
        header = QueueRequest(topic=topic, queue_id=queue_id)
        return await self._offset(broker, RequestCode.GET_MIN_OFFSET, header)

    async def at_time(self, broker: BrokerRef, topic: str, queue_id: int, time_ms: int) -> int:
        """SEARCH_OFFSET_BY_TIMESTAMP: the first message stored at a time or after it."""
        header = SearchOffsetRequest(topic=topic, queue_id=queue_id, timestamp=time_ms)
        return await self._offset(broker, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def _offset(self, broker: BrokerRef, code: RequestCode, header: headers.Header) -> int:
        response = await self._requests.read_header(broker, OffsetResponse, code, header)
        return response.queue_offset

    # -- of consumers ------------------------------------------------------------------------------

    async def committed(
        self, broker: BrokerRef, group: str, topic: str, queue_id: int
    ) -> int | None:
        """QUERY_CONSUMER_OFFSET; None if the group has none there."""
        header = QueryConsumerOffsetRequest(
            consumer_group=group, topic=topic, queue_id=queue_id, set_zero_if_not_found=False
        )
        accept = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        code = RequestCode.QUERY_CONSUMER_OFFSET
        response = await self._requests.request(broker, code, header, accept=accept)
        if response.code != ResponseCode.SUCCESS:
            return None
        return headers.decode(OffsetResponse, response.fields).queue_offset

    async def commit(
        self, broker: BrokerRef, group: str, topic: str, queue_id: int, queue_offset: int
    ) -> None:
        """UPDATE_CONSUMER_OFFSET."""
        header = UpdateConsumerOffsetRequest(
            consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=queue_offset
        )
        await self._requests.request(broker, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def all_committed(self, broker: BrokerRef) -> dict[str, dict[int, int]]:
        """GET_ALL_CONSUMER_OFFSET: by "topic@group", then by queue id."""
        code = RequestCode.GET_ALL_CONSUMER_OFFSET
        return (await self._requests.read(broker, ConsumerOffsetTable, code)).offsets

    async def clone(self, broker: BrokerRef, from_group: str, to_group: str, topic: str) -> None:
        """CLONE_GROUP_OFFSET; on a broker without it the offsets are committed one by one."""
        header = CloneGroupOffsetRequest(
            src_group=from_group, dest_group=to_group, topic=topic, offline=True
        )
        try:
            await self._requests.request(broker, RequestCode.CLONE_GROUP_OFFSET, header)
        except RequestError as e:
            if e.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            config = await self._topics.config(broker, topic)
            for queue_id in range(config.read_queue_count if config else 0):
                committed = await self.committed(broker, from_group, topic, queue_id)
                if committed is not None:
                    await self.commit(broker, to_group, topic, queue_id, committed)

    async def plan_clone(
        self, broker: BrokerRef, from_group: str, to_group: str, topic: str
    ) -> list[Move]:
        """The changes that `clone` would make on a broker: only queues where the source has one."""
        config = await self._topics.config(broker, topic)
        moves: list[Move] = []
        for queue_id in range(config.read_queue_count if config else 1):
            after = await self.committed(broker, from_group, topic, queue_id)
            if after is not None:
                before = await self.committed(broker, to_group, topic, queue_id)
                queue = MessageQueue(topic=topic, broker_name=broker.name, queue_id=queue_id)
                moves.append(Move(queue, before, after))
        return moves

    # -- moving ------------------------------------------------------------------------------------

    async def plan(self, broker: BrokerRef, group: str, topic: str, goal: Goal) -> list[Move]:
        """The changes that a move would make on a broker. Raises TargetError."""
        config = await self._topics.config(broker, topic)
        # A topic within a topic (LMQ) has no settings and one queue.
        queue_count = config.read_queue_count if config else 1
        if goal.queue_id is not None and goal.queue_id >= queue_count:
            raise TargetError(
                f"{topic} has {queue_count} queues on {broker.name}, no queue {goal.queue_id}"
            )
        wanted = range(queue_count) if goal.queue_id is None else [goal.queue_id]
        return [await self._plan_queue(broker, group, topic, queue_id, goal) for queue_id in wanted]

    async def _plan_queue(
        self, broker: BrokerRef, group: str, topic: str, queue_id: int, goal: Goal
    ) -> Move:
        begin = await self.begin(broker, topic, queue_id)
        end = await self.end(broker, topic, queue_id)
        if goal.queue_offset is not None:
            after = goal.queue_offset
            if not begin <= after <= end:
                raise TargetError(
                    f"{topic} queue {queue_id} on {broker.name} holds {begin} to {end}, "
                    f"{after} is outside"
                )
        elif goal.time_ms == LATEST_MS:
            after = end
        elif goal.time_ms <= EARLIEST_MS:
            after = begin
        else:
            after = max(await self.at_time(broker, topic, queue_id, goal.time_ms), begin)
        before = await self.committed(broker, group, topic, queue_id)
        queue = MessageQueue(topic=topic, broker_name=broker.name, queue_id=queue_id)
        return Move(queue, before, after)

    async def move(
        self, broker: BrokerRef, group: str, topic: str, goal: Goal, *, force: bool = True
    ) -> list[Move]:
        """Move the offsets of a group on a broker; without `force` only backwards.

        Raises TargetError, and RequestError if the broker refuses.
        """
        planned = await self.plan(broker, group, topic, goal)
        members = await self._groups.connection(broker, group)
        online = members is not None and bool(members.connections)
        try:
            moved = await self._ask_broker(broker, group, topic, goal, force=force)
        except RequestError as e:
            # 4.9 requires members; both require a group that has committed before.
            if online and e.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            moved = None
        if moved is not None and not _ignored(planned, moved, goal):
            return [
                Move(each.queue, each.before, moved.get(each.queue, each.after), pushed=online)
                for each in planned
            ]
        if online:
            raise TargetError(
                f"{broker.name} cannot move one queue of {group} while consumers are online; "
                "stop them, or move all queues to a time"
            )
        return await self._write(broker, group, planned, force=force)

    async def _ask_broker(
        self, broker: BrokerRef, group: str, topic: str, goal: Goal, *, force: bool
    ) -> Mapping[MessageQueue, int] | None:
        """INVOKE_BROKER_TO_RESET_OFFSET; None if the broker cannot move to this target."""
        if not force:
            # 5.x always forces: offsets that must not move ahead are committed one by one.
            return None
        if goal.queue_id is not None and not await self.moves_single_queues(broker):
            return None
        header = _reset_request(group, topic, goal, force=force)
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        language = Language.CPP if goal.for_cpp else Language.PYTHON
        response = await self._requests.request(broker, code, header, language=language)
        return bodies.decode(ResetOffsetBody, response.body or b"{}").offsets

    async def move_queue(
        self, broker: BrokerRef, group: str, move: Move, *, by_broker: bool
    ) -> None:
        """Set the offset of one queue. `by_broker`: members on line get it (`moves_single_queues`).

        Otherwise the offset is committed, which members on line would overwrite.
        """
        topic, queue_id = move.queue.topic or "", move.queue.queue_id
        if by_broker:
            goal = Goal(queue_id=queue_id, queue_offset=move.after)
            header = _reset_request(group, topic, goal, force=True)
            code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
            try:
                await self._requests.request(broker, code, header)
            except RequestError as e:
                # 5.x requires a group that has committed before.
                if e.code != ResponseCode.SYSTEM_ERROR or move.before is not None:
                    raise
            else:
                return
        await self.commit(broker, group, topic, queue_id, move.after)

    async def moves_single_queues(self, broker: BrokerRef) -> bool:
        """Whether the broker can reset one queue: a 4.9 broker would reset all of them."""
        config = await self._requests.request(broker, RequestCode.GET_BROKER_CONFIG)
        return any(sign in config.body for sign in _MOVES_SINGLE_QUEUES)

    async def _write(
        self, broker: BrokerRef, group: str, planned: list[Move], *, force: bool
    ) -> list[Move]:
        done: list[Move] = []
        for move in planned:
            behind = move.before is not None and move.before < move.after
            after = move.before if behind and not force and move.before is not None else move.after
            await self.commit(broker, group, move.queue.topic or "", move.queue.queue_id, after)
            done.append(Move(move.queue, move.before, after))
        return done


def _reset_request(group: str, topic: str, goal: Goal, *, force: bool) -> ResetOffsetRequest:
    return ResetOffsetRequest(
        topic=topic,
        group=group,
        timestamp=goal.time_ms,
        is_force=force,
        queue_id=-1 if goal.queue_id is None else goal.queue_id,
        queue_offset=goal.queue_offset,
    )


def _ignored(planned: list[Move], moved: Mapping[MessageQueue, int], goal: Goal) -> bool:
    """Whether a broker ignored the offset: then its response has another one."""
    if goal.queue_offset is None:
        return False
    return any(moved.get(each.queue) != goal.queue_offset for each in planned)
