"""Contexts with TLS, against servers that enforce it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.brokers import eventually, running_broker, running_namesrv
from tests.support.command_line import Ran, run_words

from tianzhou.cli.commands.tls import make_certificates


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIANZHOU_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)


async def tianzhou(*words: str) -> Ran:
    return await asyncio.to_thread(run_words, words)


@asynccontextmanager
async def secured(folder: Path) -> AsyncGenerator[str]:
    """A broker that takes TLS only, and its nameserver, to which the broker itself talks plain."""
    assert make_certificates(folder / "tls", ["127.0.0.1"]) == 0
    papers = {
        "tlsServerCertPath": folder / "tls" / "server.pem",
        "tlsServerKeyPath": folder / "tls" / "server.key",
    }
    async with (
        running_namesrv(folder, tlsMode="permissive", **papers) as namesrv,
        running_broker(
            folder / "store", namesrvAddr=namesrv, tlsMode="enforcing", **papers
        ) as broker,
    ):
        await eventually(lambda: broker.registered_with, "registration")
        yield namesrv


async def test_context_with_ca_connects_to_enforcing_broker(
    tmp_path: Path,
) -> None:
    async with secured(tmp_path) as namesrv:
        ca = str(tmp_path / "tls" / "ca.pem")
        added = await tianzhou("context", "add", "safe", "-n", namesrv, "--tls-ca", ca, "--use")
        assert added.code == 0, added
        for words in (
            "topic create orders --queues 1",
            "message send orders hello --tag paid",
            "bench send orders --count 20 --concurrency 2",
            "cluster latency --count 3 --once",
            "group create billing",
            "cluster top --once",
            "broker config broker-a",
            "cluster export configs --json",
        ):
            ran = await tianzhou(*words.split())
            assert ran.code == 0, (words, ran)
        shown = await tianzhou("message", "query", "orders", "--tag", "paid", "--from", "earliest")
        assert "hello" in shown.out
        healthy = await tianzhou("doctor", "--wait", "0", "--json")
        levels = {each["check"]: each["level"] for each in healthy.json}
        assert (levels["nameservers"], levels["addresses"]) == ("ok", "ok")
        told = (await tianzhou("context", "list", "--json")).json
        assert told["contexts"]["safe"]["tls_ca"] == ca


async def test_plain_connection_or_other_ca_fails(tmp_path: Path) -> None:
    async with secured(tmp_path) as namesrv:
        plain = await tianzhou("broker", "config", "broker-a", "--namesrv", namesrv)
        assert plain.code == 1, plain
        assert plain.err.count("\n") == 1
        assert plain.out == ""
        assert make_certificates(tmp_path / "strangers", ["127.0.0.1"]) == 0
        other = str(tmp_path / "strangers" / "ca.pem")
        await tianzhou("context", "add", "other", "-n", namesrv, "--tls-ca", other)
        strange = await tianzhou("topic", "list", "--context", "other")
        assert strange.code == 1, strange
        assert "certificate" in strange.err.lower()
        assert strange.err.count("\n") == 1
        # The system's authorities have not signed it either.
        await tianzhou("context", "add", "system", "-n", namesrv, "--tls")
        system = await tianzhou("topic", "list", "--context", "system")
        assert system.code == 1, system
        assert "certificate" in system.err.lower()


async def test_context_with_client_certificate(tmp_path: Path) -> None:
    tls = tmp_path / "tls"
    assert make_certificates(tls, ["127.0.0.1"]) == 0
    port = {
        "tlsMode": "enforcing",
        "tlsServerCertPath": tls / "server.pem",
        "tlsServerKeyPath": tls / "server.key",
        "tlsServerNeedClientAuth": "require",
        "tlsServerTrustCertPath": tls / "ca.pem",
    }
    async with running_namesrv(tmp_path, **port) as namesrv:
        ca = ("-n", namesrv, "--tls-ca", str(tls / "ca.pem"), "--use")
        await tianzhou("context", "add", "anonymous", *ca)
        assert (await tianzhou("namesrv", "list")).code == 1
        half = await tianzhou("context", "add", "x", *ca, "--tls-key", str(tls / "client.key"))
        assert (half.code, half.err.count("\n")) == (2, 1)
        gone = await tianzhou("context", "add", "x", *ca, "--tls-cert", str(tls / "gone.pem"))
        assert gone.code == 2
        assert "no such file" in gone.err
        papers = ("--tls-cert", str(tls / "client.pem"), "--tls-key", str(tls / "client.key"))
        added = await tianzhou("context", "add", "known", *ca, *papers)
        assert added.code == 0, added
        listed = await tianzhou("namesrv", "list", "--json")
        assert [each["answers"] for each in listed.json] == [True]
