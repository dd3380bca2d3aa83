"""The page of brokers that elect their master: replicas, switches, etcd, and a lost master."""

from pathlib import Path
from typing import Any

import httpx

from tests.support.console.collected import collected
from tests.support.elected_here import NAME, elected_here


async def _get(client: httpx.AsyncClient, path: str) -> dict[str, Any]:
    answer = await client.get(f"{path}.json")
    assert answer.status_code == 200, answer.text[:2000]
    found: dict[str, Any] = answer.json()
    return found


async def test_failover_is_shown(tmp_path: Path) -> None:
    async with elected_here(tmp_path) as group:
        await group.in_sync(3)
        async with collected(tmp_path / "console", main=group.cli.namesrv) as console:
            client = await console.browser("rita")
            found = await _get(client, f"/c/main/brokers/{NAME}")
            failover = found["failover"]
            assert (failover["mode"], failover["is_paused"]) == ("master", False)
            replicas = {each["replica_id"] for each in failover["replicas"]}
            assert set(failover["in_sync"]) == replicas
            assert [each["is_master"] for each in failover["replicas"]].count(True) == 1
            assert found["switches"][-1]["epoch"] == 1
            assert [each["is_answering"] for each in found["etcd"]] == [True]
            rows = (await _get(client, "/c/main/brokers"))["brokers"]["rows"]
            assert {str(row["role"]["text"]) for row in rows} == {"master", "slave"}
            assert {row["replication"]["level"] for row in rows} == {"ok"}
            page = (await client.get(f"/c/main/brokers/{NAME}")).text
            assert "Switch of master" in page
            assert group.etcd.endpoints in page

            for number in range(len(group.brokers) - 1):
                await group.stop(number)
            await console.round()
            problems = (await _get(client, "/c/main"))["problems"]
            assert problems[0]["level"] == "bad"
            assert {each["path"] for each in problems} == {f"/brokers/{NAME}"}
            assert (await client.get(f"/c/main/brokers/{NAME}")).status_code == 200
