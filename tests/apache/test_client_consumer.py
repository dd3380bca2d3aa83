"""Our consumers with our broker and with Apache's of both versions."""

from pathlib import Path

import pytest

from tests.apache.backends import Backend
from tests.apache.consumer_scenarios import SCENARIOS, Scenario, Site
from tests.integration.brokers import peer_of
from tianzhou.client import ClientSettings, hub


async def broker_of(namesrv: str) -> tuple[str, str]:
    """Name and address of the only broker."""
    own = hub.acquire(ClientSettings(namesrv=namesrv))
    try:
        route = await own.route("TBW102")
        return route.readable[0].broker_name, own.topic_addresses("TBW102")[0]
    finally:
        await own.release()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
async def test_consumer(scenario: Scenario, backend: Backend, tmp_path: Path) -> None:
    name, address = await broker_of(backend.namesrv)
    async with peer_of(address) as peer:
        await scenario(
            Site(
                backend.namesrv,
                peer,
                tmp_path,
                name,
                tells_unknown_groups=backend.kind != "4.9.7",
            )
        )
