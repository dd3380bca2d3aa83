"""A cluster with scripted responses: nameserver and brokers in a single server.

    async with scripted_cluster(on_send=answer) as it:
        async with Producer("g", namesrv=it.namesrv) as producer: ...
        assert it.count(RequestCode.SEND_MESSAGE_V2) == 3

It records every request. Every topic exists, with one queue on each of `broker_names`, which all
have the same address; requests name the broker. Pulls wait for ever.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.support.remoting import serving
from tianzhou.protocol import bodies, headers
from tianzhou.protocol.bodies.route import (
    BrokerData,
    QueueData,
    TopicQueueMappingInfo,
    TopicRouteData,
)
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.send import SendMessageResponse
from tianzhou.remoting.connection import Connection

_READ_AND_WRITE = 6

Answer = Command | Awaitable[Command | None] | None
OnSend = Callable[[Connection, Command], Answer]


def stored(code: int = ResponseCode.SUCCESS) -> Command:
    """The response to a stored message, with full or weaker durability."""
    header = SendMessageResponse(msg_id="0" * 32, queue_id=0, queue_offset=0)
    return Command(code=code, ext_fields=headers.encode(header))


@dataclass(slots=True)
class Script:
    """The running server."""

    on_send: OnSend
    broker_names: tuple[str, ...]
    port_shift: int
    """Routes give broker ports this much above the port of the server."""
    namesrv: str = ""
    static_topics: frozenset[str] = frozenset()
    requests: list[Command] = field(default_factory=list[Command])

    def count(self, code: int) -> int:
        """How many requests of a code were received."""
        return len(self.fields(code))

    def fields(self, code: int) -> list[dict[str, str]]:
        """The fields of the requests of a code."""
        return [dict(each.fields) for each in self.requests if each.code == code]

    def handle(self, connection: Connection, request: Command) -> Answer:
        self.requests.append(request)
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            route = self._route(is_static=request.fields["topic"] in self.static_topics)
            return Command(code=ResponseCode.SUCCESS, body=bodies.encode(route))
        if request.code == RequestCode.SEND_MESSAGE_V2:
            return self.on_send(connection, request)
        if request.code == RequestCode.PULL_MESSAGE:
            return None  # held, as brokers do while there is no message
        return Command(code=ResponseCode.SUCCESS, ext_fields={"offset": "0"})

    def _route(self, *, is_static: bool) -> TopicRouteData:
        host, _, port = self.namesrv.rpartition(":")
        address = f"{host}:{int(port) + self.port_shift}"
        return TopicRouteData(
            queues=[
                QueueData(
                    broker_name=name, read_queue_count=1, write_queue_count=1, perm=_READ_AND_WRITE
                )
                for name in self.broker_names
            ],
            brokers=[
                BrokerData(cluster="c", broker_name=name, addresses={0: address})
                for name in self.broker_names
            ],
            mappings={
                name: TopicQueueMappingInfo(broker_name=name, queue_count=1)
                for name in self.broker_names
            }
            if is_static
            else None,
        )


@asynccontextmanager
async def scripted_cluster(
    on_send: OnSend = lambda _connection, _request: stored(),
    *,
    broker_names: tuple[str, ...] = ("a",),
    port: int = 0,
    port_shift: int = 0,
) -> AsyncGenerator[Script]:
    """A cluster for as long as the block lasts."""
    script = Script(on_send, broker_names, port_shift)
    async with serving(script.handle, port=port, drain_s=0) as (_, address):
        script.namesrv = address
        yield script
