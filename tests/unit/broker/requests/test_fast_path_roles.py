"""The role of a broker changes while it runs: the fast path follows with the next requests."""

import dataclasses
import math

import pytest
from tests.property.test_fast_path import (
    LARGER,
    NOON_MS,
    PEERS,
    STORE_HOST,
    Now,
    Side,
    fed_side,
    frames_of,
    prepare,
    pull_frame,
    responses,
    send_frame,
)

from tianzhou.broker.config import BrokerRole
from tianzhou.protocol import kernel
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command, decode, encode
from tianzhou.store.message_store import Draft

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(kernel.WHY_PURE is not None, reason=f"no kernel: {kernel.WHY_PURE}"),
]


@pytest.fixture(autouse=True)
def _all_in_one_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of a loop iteration must not depend on the speed of the machine."""
    monkeypatch.setattr("tianzhou.remoting.connection._SHARE_S", math.inf)


def set_role(side: Side, role: BrokerRole, *, reads: bool) -> None:
    side.settings.config = dataclasses.replace(
        side.settings.config, broker_role=role, slave_read_enable=reads
    )


def committing_pull(opaque: int, commit_offset: int) -> bytes:
    command = decode(pull_frame(opaque, 0))
    fields = {**command.fields, "sysFlag": "5", "commitOffset": str(commit_offset)}
    return encode(Command(code=RequestCode.PULL_MESSAGE, opaque=opaque, ext_fields=fields))


async def test_slave_stores_no_sends_on_the_fast_path() -> None:
    side = await fed_side()
    handled_count = side.fed_count
    await side.arrive(send_frame(3, b"x"), [])
    assert side.fed_count == handled_count, "the handlers were asked although it is a master"
    set_role(side, BrokerRole.SLAVE, reads=True)
    await side.arrive(send_frame(4, b"x") + send_frame(5, b"x"), [])
    assert side.fed_count == handled_count - 2, "the fast path stored sends of a slave"
    set_role(side, BrokerRole.ASYNC_MASTER, reads=True)
    await side.arrive(send_frame(6, b"x"), [])
    assert side.fed_count == handled_count - 2
    side.close()


async def test_slave_commits_no_offsets_of_pulls() -> None:
    side = await fed_side({"slaveReadEnable": "true"})
    handled_count = side.fed_count
    await side.arrive(committing_pull(3, 1), [])
    assert side.deps.offsets.find("g", "orders", 0) == 1
    set_role(side, BrokerRole.SLAVE, reads=True)
    await side.arrive(committing_pull(4, 0), [])
    assert responses(side.transport)[-1] == (4, ResponseCode.SUCCESS)
    assert side.fed_count == handled_count, "the handlers were asked"
    assert side.deps.offsets.find("g", "orders", 0) == 1
    side.close()


async def test_slave_without_slave_reads_serves_no_pulls_on_the_fast_path() -> None:
    side = await fed_side()
    await side.arrive(pull_frame(3, 0), [])
    set_role(side, BrokerRole.SLAVE, reads=False)
    await side.arrive(pull_frame(4, 0), [])
    assert responses(side.transport) == [
        (3, ResponseCode.SUCCESS), (4, ResponseCode.PULL_RETRY_IMMEDIATELY),
    ]  # fmt: skip
    side.close()


# -- handlers --------------------------------------------------------------------------------------


async def pull_at_end(side: Side, *, suspend_ms: int) -> Command | None:
    """The response to a pull behind the last message; None if it is parked."""
    command = decode(pull_frame(9, 0))
    flags = {"sysFlag": "6", "suspendTimeoutMillis": str(suspend_ms)} if suspend_ms else {}
    fields = {**command.fields, "queueOffset": "1", **flags}
    side.transport.written.clear()
    await side.arrive(
        encode(Command(code=RequestCode.PULL_MESSAGE, opaque=9, ext_fields=fields)), []
    )
    frames = frames_of(bytes(side.transport.written))
    return decode(frames[0]) if frames else None


@pytest.mark.parametrize(
    ("has_master", "code"),
    [(True, ResponseCode.PULL_RETRY_IMMEDIATELY), (False, ResponseCode.PULL_NOT_FOUND)],
)
async def test_reader_at_the_end_goes_back_to_a_master_that_is_there(
    has_master: bool, code: int
) -> None:
    """PullMessageProcessor.composeResponseHeader of 5.5.0."""
    side = Side(False, Now(), PEERS[0], LARGER)
    prepare(side)
    side.store.append(Draft("orders", 0, b"x", "", NOON_MS, STORE_HOST, STORE_HOST))
    side.deps = dataclasses.replace(side.deps, has_master=lambda: has_master)
    set_role(side, BrokerRole.SLAVE, reads=True)
    answer = await pull_at_end(side, suspend_ms=0)
    assert answer is not None
    assert (answer.code, answer.fields["suggestWhichBrokerId"]) == (code, "0")
    assert answer.fields["nextBeginOffset"] == "1"
    # If it may wait, it waits for a message first; with a master for a second at most.
    assert await pull_at_end(side, suspend_ms=15_000) is None
    (parked,) = side.deps.parked.waiting(("orders", 0))
    assert parked.deadline_ms - side.clock() == (1000 if has_master else 15_000)
    side.close()
