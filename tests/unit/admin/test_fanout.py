"""Asking many brokers: one away is a warning, all away is a failure."""

import pytest

from tianzhou.admin.fanout import BrokerRef, gather
from tianzhou.errors import ConnectError

BROKERS = [BrokerRef(name, 0, f"{name}:1", "c") for name in "dcba"]


async def test_responses_are_in_the_order_of_brokers() -> None:
    async def ask(at: BrokerRef) -> str:
        return at.name

    gathered = await gather(BROKERS, ask)
    assert list(gathered.responses.values()) == ["d", "c", "b", "a"]
    assert gathered.warnings == []


async def test_one_failure_is_a_warning() -> None:
    async def ask(at: BrokerRef) -> str:
        if at.name == "c":
            raise ConnectError("refused")
        return at.name

    gathered = await gather(BROKERS, ask)
    assert [at.name for at in gathered.responses] == ["d", "b", "a"]
    assert gathered.warnings == ["c (c:1): refused"]


async def test_all_failures_raise_the_first() -> None:
    async def ask(at: BrokerRef) -> str:
        raise ConnectError(f"{at.name} refused")

    with pytest.raises(ConnectError, match="d refused"):
        await gather(BROKERS, ask)


async def test_no_brokers_is_no_failure() -> None:
    async def ask(at: BrokerRef) -> str:
        return at.name

    assert (await gather([], ask)).responses == {}
