"""Queue assignment by the broker (5.x), and the message request mode of groups (pull or pop).

Values in, values out. The strategies are RocketMQ's AVG and AVG_BY_CIRCLE, so that members that ask
brokers and members that rebalance themselves get the same result. Modes are saved in
`messageRequestMode.json`, as by RocketMQ.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from tianzhou.broker.tables.saver import convert_table, encode_body
from tianzhou.names import RETRY_TOPIC_PREFIX
from tianzhou.protocol.bodies.queues import (
    MessageQueue,
    MessageRequestModeTable,
    SetMessageRequestModeBody,
)

POP, PULL = "POP", "PULL"
ANY_QUEUE = -1
Q = TypeVar("Q")


def averagely(queues: Sequence[Q], clients: Sequence[str], client: str) -> list[Q]:
    """Adjacent queues for each client; the first clients get one more."""
    if client not in clients:
        return []
    at = clients.index(client)
    size, more = divmod(len(queues), len(clients))
    start = at * size + min(at, more)
    return list(queues[start : start + size + (at < more)])


def by_circle(queues: Sequence[Q], clients: Sequence[str], client: str) -> list[Q]:
    """Round robin."""
    if client not in clients:
        return []
    return list(queues[clients.index(client) :: len(clients)])


STRATEGIES = {"AVG": averagely, "AVG_BY_CIRCLE": by_circle}

Share = Callable[[Sequence[MessageQueue], Sequence[str], str], list[MessageQueue]]


def share_for_pop(
    share: Share,
    queues: Sequence[MessageQueue],
    clients: Sequence[str],
    client: str,
    neighbour_count: int,
) -> list[MessageQueue]:
    """The queues that a client pops: its own share and those of the next `neighbour_count` clients.

    If that is 0 or covers nearly all clients, all pop everything: one entry per broker, for any of
    its queues.
    """
    if client not in clients:
        return []
    if not 0 < neighbour_count < len(clients) - 1:
        brokers = sorted({queue.broker_name or "" for queue in queues})
        topic = queues[0].topic if queues else None
        return [MessageQueue(topic=topic, broker_name=each, queue_id=ANY_QUEUE) for each in brokers]
    at = clients.index(client)
    if len(clients) > len(queues):
        return [queues[at % len(queues)]] if queues else []
    mine: list[MessageQueue] = []
    for step in range(neighbour_count + 1):
        mine += share(queues, clients, clients[(at + step) % len(clients)])
    return mine


class ModeTable:
    """The message request modes by topic and group."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self.modes: dict[str, dict[str, SetMessageRequestModeBody]] = {}
        """By topic, then by group."""
        self.change_count = 0
        """How many changes were made since the start."""
        self._on_change = on_change

    def __len__(self) -> int:
        return sum(map(len, self.modes.values()))

    def has(self, topic: str, group: str) -> bool:
        return group in self.modes.get(topic, ())

    def put(self, topic: str, group: str, mode: SetMessageRequestModeBody) -> None:
        self.modes.setdefault(topic, {})[group] = mode
        self._changed()

    def replace(self, table: MessageRequestModeTable) -> bool:
        """Become equal to another broker's table; False if it was equal."""
        if self.modes == table.modes:
            return False
        self.modes = {topic: dict(groups) for topic, groups in table.modes.items()}
        self._changed()
        return True

    def _changed(self) -> None:
        self.change_count += 1
        self._on_change()

    def find(
        self, topic: str, group: str, default_mode: str, default_share: int
    ) -> SetMessageRequestModeBody:
        known = self.modes.get(topic, {}).get(group)
        if known is not None:
            return known
        mode = PULL if topic.startswith(RETRY_TOPIC_PREFIX) else default_mode
        return SetMessageRequestModeBody(
            topic=topic,
            consumer_group=group,
            mode=mode,
            pop_share_queue_count=default_share if mode == POP else 0,
        )

    def as_body(self) -> MessageRequestModeTable:
        return MessageRequestModeTable(modes=self.modes)

    def as_file(self) -> dict[str, object]:
        """The content of `messageRequestMode.json`."""
        return {
            "messageRequestModeMap": {
                topic: {group: encode_body(mode) for group, mode in groups.items()}
                for topic, groups in self.modes.items()
            }
        }

    def load(self, content: dict[str, object]) -> None:
        """Load the content of a file. Raises BodyError; then nothing has changed."""
        self.modes = convert_table(content, MessageRequestModeTable, "modes of groups").modes
