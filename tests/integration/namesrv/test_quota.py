"""Limits of a nameserver: requests per address, and lengths of bodies."""

from pathlib import Path

import pytest
from tests.support.brokers import eventually, peer_of, running_namesrv
from tests.support.namesrv import Broker, asking

from tianzhou.errors import ConfigError
from tianzhou.protocol.codes import RequestCode, ResponseCode

CLUSTERS = RequestCode.GET_BROKER_CLUSTER_INFO


async def test_an_address_over_its_rate_is_refused_and_brokers_stay_registered(
    tmp_path: Path,
) -> None:
    path = tmp_path / "quota.yml"
    path.write_text("clients: [{address: 127.0.0.1, requestsPerSecond: 0.001}]")
    async with running_namesrv(tmp_path, quotaFile=path) as namesrv, peer_of(namesrv) as peer:
        answers = [await peer.ask(CLUSTERS) for _ in range(3)]
        assert [answer.code for answer in answers] == [
            ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_BUSY,
        ]  # fmt: skip
        assert answers[1].remark == (
            "nameserver busy: requestsPerSecond of address 127.0.0.1 is 0.001"
        )
        async with asking(namesrv) as asker:
            registered = await Broker().register(asker)
        assert registered.code == ResponseCode.SUCCESS, "a registration may go into debt"
        path.write_text("clients: []\nconnections: {perServer: 1}\n")

        async def is_free() -> bool:
            return (await peer.ask(CLUSTERS)).code == ResponseCode.SUCCESS

        await eventually(is_free, "the changed file")
        async with peer_of(namesrv) as second:
            over_limit = await second.ask(CLUSTERS)
        assert over_limit.code == ResponseCode.SYSTEM_BUSY
        assert "the limit" in (over_limit.remark or "")


async def test_an_invalid_quota_file_fails_the_start(tmp_path: Path) -> None:
    path = tmp_path / "quota.yml"
    path.write_text("topics: [{topic: t, messagesPerSecond: 1}]")
    with pytest.raises(ConfigError, match="unknown name 'topics'"):
        async with running_namesrv(tmp_path, quotaFile=path):
            pass


async def test_the_length_of_a_body_is_checked_before_it_is_decoded(tmp_path: Path) -> None:
    async with running_namesrv(tmp_path) as namesrv, peer_of(namesrv) as peer:
        long = await peer.ask(CLUSTERS, body=b"x" * 65_537)
        assert (long.code, long.remark) == (
            ResponseCode.SYSTEM_ERROR,
            f"request type {CLUSTERS} carries 65537 bytes, 65536 are allowed",
        )
        # Objects as keys need the slow parser, which does not accept megabytes.
        hostile = b'{"topicConfigSerializeWrapper":{' + b'{"a":1}:1,' * 100_000 + b"}}"
        async with asking(namesrv) as asker:
            answer = await Broker().register(asker, hostile)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "no strict JSON" in (answer.remark or "")
        assert (await peer.ask(CLUSTERS)).code == ResponseCode.SUCCESS
