"""Allocation: which queues of a topic are this client's, as Java's client computes it.

    allocate(group, client_id, queues, client_ids) -> queues of client_id

There is no coordinator: every member of a group sorts the same queues and the same client ids, and
calls the same function. So a strategy must assign every queue to exactly one member, whichever
member computes it, and its result must equal that of Java's strategy of the same name: a group may
have members of both kinds. Programs may pass own functions with this signature. They get both lists
sorted, the lists are never empty, and `client_id` is in `client_ids`.

Callers use `shares`, which sorts the arguments and checks the result.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence

from tianzhou.client.queues import Queue, java_order, java_text
from tianzhou.errors import ConfigError

Allocate = Callable[[str, str, Sequence[Queue], Sequence[str]], Sequence[Queue]]
"""Group, own client id, all queues of a topic, all client ids of the group: the own queues."""

VIRTUAL_NODE_COUNT = 10


def shares(
    allocate: Allocate, group: str, client_id: str, queues: Iterable[Queue], ids: Iterable[str]
) -> frozenset[Queue]:
    """The queues of `client_id`; none while the broker does not list it as a member.

    Raises ConfigError if the strategy returns a queue that it was not given.
    """
    all_queues = java_order(set(queues))
    all_ids = sorted(set(ids), key=java_text)
    if not all_queues or client_id not in all_ids:
        return frozenset()
    own = frozenset(allocate(group, client_id, all_queues, all_ids))
    if unknown := own.difference(all_queues):
        raise ConfigError(
            f"group {group}: the allocation strategy returned {min(unknown)}, which is not one of "
            f"the {len(all_queues)} queues passed to it"
        )
    return own


# -- by count --------------------------------------------------------------------------------------


def averagely(
    group: str, client_id: str, queues: Sequence[Queue], client_ids: Sequence[str]
) -> Sequence[Queue]:
    """Neighbouring queues in equal portions; the first members get one more of a remainder."""
    del group
    index = client_ids.index(client_id)
    portion, rest = divmod(len(queues), len(client_ids))
    start = index * portion + min(index, rest)
    return queues[start : start + portion + (index < rest)]


def averagely_by_circle(
    group: str, client_id: str, queues: Sequence[Queue], client_ids: Sequence[str]
) -> Sequence[Queue]:
    """Round robin: one queue to each member in turn."""
    del group
    return queues[client_ids.index(client_id) :: len(client_ids)]


# -- by hash ---------------------------------------------------------------------------------------


def consistent_hash(virtual_node_count: int = VIRTUAL_NODE_COUNT) -> Allocate:
    """Few queues change their owner when a member joins or leaves; the portions are uneven."""
    if virtual_node_count < 0:
        raise ConfigError(f"virtual_node_count is {virtual_node_count}, it cannot be negative")

    def allocate(
        group: str, client_id: str, queues: Sequence[Queue], client_ids: Sequence[str]
    ) -> Sequence[Queue]:
        del group
        ring: dict[int, str] = {}
        for each in client_ids:
            for replica in range(virtual_node_count):
                ring[_md5_point(f"{each}-{replica}")] = each
        points = sorted(ring)
        if not points:
            return ()
        return [queue for queue in queues if _owner(ring, points, queue) == client_id]

    return allocate


def _owner(ring: Mapping[int, str], points: Sequence[int], queue: Queue) -> str:
    point = _md5_point(_java_name(queue))
    at = bisect_left(points, point)
    return ring[points[at % len(points)]]


def _md5_point(text: str) -> int:
    digest = hashlib.md5(text.encode(errors="replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4])


def _java_name(queue: Queue) -> str:
    """`MessageQueue.toString` of Java, which is what its strategy hashes."""
    topic, broker_name, queue_id = queue
    return f"MessageQueue [topic={topic}, brokerName={broker_name}, queueId={queue_id}]"


# -- by location -----------------------------------------------------------------------------------


def by_config(queues_of_this_client: Iterable[Queue]) -> Allocate:
    """Always these queues, independent of other members: the operator divides them.

    Queues that do not exist are left out. Of a topic that is not mentioned this client gets none.
    """
    own = frozenset(queues_of_this_client)

    return lambda _group, _client_id, queues, _ids: [queue for queue in queues if queue in own]


def by_machine_room(rooms: Iterable[str]) -> Allocate:
    """Only brokers named `room@name` whose room is among `rooms`, their queues in equal numbers."""
    served = frozenset(rooms)

    def allocate(
        group: str, client_id: str, queues: Sequence[Queue], client_ids: Sequence[str]
    ) -> Sequence[Queue]:
        del group
        near = [queue for queue in queues if _room_in_name(queue.broker_name) in served]
        index = client_ids.index(client_id)
        portion, rest = divmod(len(near), len(client_ids))
        own = near[portion * index : portion * (index + 1)]
        if index < rest:
            own.append(near[portion * len(client_ids) + index])
        return own

    return allocate


def _room_in_name(broker_name: str) -> str | None:
    # Java splits at every @ and drops empty parts at the end; exactly two parts must be left.
    parts = broker_name.rstrip("@").split("@")
    return parts[0] if len(parts) == 2 else None


def machine_room_nearby(
    inner: Allocate,
    room_of_broker: Callable[[Queue], str],
    room_of_client: Callable[[str], str],
) -> Allocate:
    """Queues go to members in their room, by `inner`; rooms without a member are shared by all.

    The allocation fails with ConfigError if a queue or a member is in no room.
    """

    def allocate(
        group: str, client_id: str, queues: Sequence[Queue], client_ids: Sequence[str]
    ) -> Sequence[Queue]:
        queues_by_room: dict[str, list[Queue]] = {}
        for queue in queues:
            room = _named_room(room_of_broker(queue), str(queue))
            queues_by_room.setdefault(room, []).append(queue)
        ids_by_room: dict[str, list[str]] = {}
        for each in client_ids:
            ids_by_room.setdefault(_named_room(room_of_client(each), each), []).append(each)
        here = room_of_client(client_id)
        own: list[Queue] = []
        for room in sorted(queues_by_room, key=lambda name: (name != here, java_text(name))):
            members = ids_by_room.get(room, client_ids)
            if client_id in members:
                own += inner(group, client_id, queues_by_room[room], members)
        return own

    return allocate


def _named_room(room: str, of_what: str) -> str:
    if not room:
        raise ConfigError(f"{of_what} is in no machine room")
    return room


STRATEGIES: Mapping[str, Allocate] = {
    "averagely": averagely,
    "averagely_by_circle": averagely_by_circle,
    "consistent_hash": consistent_hash(),
}
"""Strategies that need no argument, by name."""
