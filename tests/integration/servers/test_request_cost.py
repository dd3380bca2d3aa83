"""No request costs the event loop of a server more than 50 ms, whatever it asks for.

The most expensive legal request of every code is sent to servers with large tables, and so are
requests that the limits refuse (`bench/costly_requests.py`). What is bounded is the CPU time of the
longest iteration of the loop, so a busy machine does not decide.
"""

import gc
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from bench import costly_requests
from bench.costly_requests import Costly
from tests.support.brokers import Peer, peer_of, running_broker, running_namesrv
from tests.support.measured_server import Measured, measured

from tianzhou.broker.server import Broker
from tianzhou.limits import REGISTERED_TOPICS_MAX
from tianzhou.namesrv.dispatch import HANDLERS
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.event_loop import spare_collections

LONGEST_S = 0.050
TIMEOUT_MS = 120_000


@pytest.fixture(autouse=True)
def as_a_server() -> Iterator[None]:
    """The garbage collector as a server has it."""
    before = gc.get_threshold()
    spare_collections()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


async def cost_of(
    server: Measured[Broker] | Measured[str], peer: Peer, costly: Costly
) -> tuple[Command, float]:
    """The answer to a request, and the longest iteration of the loop until then."""
    command = costly.command()
    return await server.longest_of(lambda: peer.client.request(peer.address, command, TIMEOUT_MS))


async def too_expensive(
    server: Measured[Broker] | Measured[str], peer: Peer, requests: list[Costly]
) -> list[str]:
    """Which requests cost too much, or were answered otherwise than expected."""
    wrong: list[str] = []
    for costly in requests:
        answer, longest_s = await cost_of(server, peer, costly)
        # A core that is shared makes the same work dearer; what is much too expensive stays so.
        if LONGEST_S < longest_s < 2 * LONGEST_S:
            longest_s = min([(await cost_of(server, peer, costly))[1] for _ in range(2)])
        name = f"{RequestCode(costly.code).name}, {costly.what}"
        if longest_s > LONGEST_S:
            wrong.append(f"{name}: {longest_s * 1000:.1f} ms")
        if costly.answers and answer.code not in costly.answers:
            wrong.append(f"{name}: answered {answer.code} {answer.remark}")
    return wrong


@asynccontextmanager
async def large_broker(
    folder: Path,
) -> AsyncGenerator[tuple[Measured[Broker], Peer, costly_requests.World]]:
    async with (
        measured(lambda: running_broker(folder, **costly_requests.SETTINGS)) as server,
        peer_of(server.server.address) as peer,
    ):

        async def fill() -> costly_requests.World:
            async with peer_of(server.server.address) as filling:
                return await costly_requests.fill(server.server, filling)

        yield server, peer, await server.run(fill)


def codes_of(requests: list[Costly]) -> set[int]:
    return {int(costly.code) for costly in requests}


async def test_no_request_to_a_broker_costs_the_loop_more_than_50_ms(tmp_path: Path) -> None:
    async with large_broker(tmp_path / "store") as (server, peer, world):
        requests = costly_requests.broker_requests(world)
        assert codes_of(requests) == set(map(int, server.server.request_codes)), (
            "each code that a broker serves needs its most expensive request"
        )
        assert not await too_expensive(server, peer, requests)


async def test_no_refused_request_costs_a_broker_more_than_50_ms(tmp_path: Path) -> None:
    async with (
        measured(lambda: running_broker(tmp_path, **costly_requests.SETTINGS)) as server,
        peer_of(server.server.address) as peer,
    ):
        await peer.send("deep", b"x")
        assert not await too_expensive(server, peer, costly_requests.attacks_on_a_broker())


@pytest.mark.parametrize(
    "requests",
    [
        lambda: costly_requests.namesrv_requests(REGISTERED_TOPICS_MAX),
        costly_requests.attacks_on_a_namesrv,
    ],
    ids=["legal", "refused"],
)
async def test_no_request_to_a_nameserver_costs_the_loop_more_than_50_ms(
    tmp_path: Path, requests: Callable[[], list[Costly]]
) -> None:
    async with (
        measured(lambda: running_namesrv(tmp_path)) as server,
        peer_of(server.server) as peer,
    ):
        assert not await too_expensive(server, peer, requests())


def test_each_code_of_a_nameserver_has_its_most_expensive_request() -> None:
    assert codes_of(costly_requests.namesrv_requests(1)) == set(map(int, HANDLERS))
