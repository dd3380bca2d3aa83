"""A broker in a cluster that enforces TLS: its own requests use TLS, too."""

import asyncio
import logging
import ssl
from pathlib import Path

import pytest
from tests.integration.broker.test_admin import create
from tests.support.brokers import (
    LOOPBACK,
    eventually,
    peer_of,
    running_broker,
    running_namesrv,
)

from tianzhou.cli.commands.tls import make_certificates
from tianzhou.errors import ConfigError
from tianzhou.protocol.bodies import decode
from tianzhou.protocol.bodies.route import TopicRouteData
from tianzhou.protocol.codes import RequestCode
from tianzhou.remoting.tls.contexts import Tls


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ca.pem of a certificate authority, and a signed server.pem with server.key."""
    folder = tmp_path_factory.mktemp("papers")
    assert make_certificates(folder, [LOOPBACK]) == 0
    return folder


def port_of(certificates: Path) -> dict[str, object]:
    """The settings of a port that enforces TLS."""
    return {
        "tlsMode": "enforcing",
        "tlsServerCertPath": certificates / "server.pem",
        "tlsServerKeyPath": certificates / "server.key",
    }


def clients_checked(certificates: Path) -> dict[str, object]:
    return {
        "tlsServerNeedClientAuth": "require",
        "tlsServerTrustCertPath": certificates / "ca.pem",
    }


def calls_of(certificates: Path) -> dict[str, object]:
    """The settings of a broker's own requests, with certificates on both sides."""
    return {
        "tls.client.certPath": certificates / "server.pem",
        "tls.client.keyPath": certificates / "server.key",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": certificates / "ca.pem",
        "tls.client.checkName": "true",
    }


async def test_all_requests_of_a_broker_use_tls(tmp_path: Path, certificates: Path) -> None:
    secure = port_of(certificates) | clients_checked(certificates)
    settings = secure | calls_of(certificates)
    own = Tls(
        certificate=certificates / "server.pem",
        key=certificates / "server.key",
        trusted=certificates / "ca.pem",
    )
    async with (
        running_namesrv(tmp_path, **secure) as namesrv,
        running_broker(tmp_path / "a", namesrvAddr=namesrv, **settings) as first,
        peer_of(first.address, own) as peer,
        peer_of(namesrv, own) as asker,
    ):
        await eventually(lambda: first.registered_with, "registration")
        await create(peer, "orders", 2, 2)
        async with running_broker(
            tmp_path / "b",
            namesrvAddr=namesrv, brokerName="broker-b", copyMetadataOnJoin="true", **settings,
        ) as joined:  # fmt: skip
            assert joined.topics.get("orders") is not None, "taken over from a broker, by TLS"
            assert joined.registered_with == {namesrv}

            async def brokers_of_topic() -> bool:
                answer = await asker.expect(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
                queues = decode(TopicRouteData, answer.body).queues
                return {queue.broker_name for queue in queues} == {"broker-a", "broker-b"}

            await eventually(brokers_of_topic, "a route with both brokers")
        answer = await asker.expect(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
        left = {queue.broker_name for queue in decode(TopicRouteData, answer.body).queues}
        assert left == {"broker-a"}, "it unregistered by TLS, too"


async def test_a_plain_port_may_register_where_tls_is_enforced(
    tmp_path: Path, certificates: Path
) -> None:
    async with (
        running_namesrv(tmp_path, **port_of(certificates)) as namesrv,
        running_broker(tmp_path / "a", namesrvAddr=namesrv, useTLS="true") as broker,
    ):
        await eventually(lambda: broker.registered_with, "registration without any certificate")


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({}, "if it accepts TLS only, set useTLS=true"),
        ({"useTLS": "true", "tls.client.authServer": "true"}, "certificate verify failed"),
    ],
)
async def test_registration_without_tls_or_trust_fails_with_the_reason(
    tmp_path: Path,
    certificates: Path,
    settings: dict[str, object],
    what: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_namesrv(tmp_path, **port_of(certificates)) as namesrv:
        with caplog.at_level(logging.WARNING, logger="tianzhou.broker.cluster.registration"):
            async with running_broker(tmp_path / "a", namesrvAddr=namesrv, **settings) as broker:
                await eventually(
                    lambda: [text for text in caplog.messages if "not registered" in text],
                    "a warning",
                )
                assert not broker.registered_with
    (warning,) = [text for text in caplog.messages if "not registered" in text]
    assert what in warning


async def test_an_enforcing_broker_may_call_a_plain_nameserver(
    tmp_path: Path, certificates: Path
) -> None:
    async with (
        running_namesrv(tmp_path) as namesrv,
        running_broker(
            tmp_path / "a", namesrvAddr=namesrv, useTLS="false", **port_of(certificates)
        ) as broker,
    ):
        await eventually(lambda: broker.registered_with, "registration")


async def test_incomplete_tls_settings_prevent_the_start(
    tmp_path: Path, certificates: Path
) -> None:
    settings: dict[str, object] = {
        "useTLS": "true",
        "tls.client.keyPath": certificates / "server.key",
    }
    with pytest.raises(ConfigError, match="tlsClientCertPath is not"):
        async with running_broker(tmp_path, **settings):
            pass
    missing: dict[str, object] = {"useTLS": "true", "tls.client.certPath": tmp_path / "absent.pem"}
    with pytest.raises(ConfigError, match=r"absent\.pem"):
        async with running_broker(tmp_path, **missing):
            pass


async def test_renewed_certificate_is_used_for_new_connections(
    tmp_path: Path, certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "tls"
    assert make_certificates(folder, [LOOPBACK]) == 0
    caplog.set_level(logging.INFO, logger="tianzhou.remoting.tls.renewal")
    async with running_broker(tmp_path / "store", **port_of(folder)) as broker:
        before = await shown_by(broker.address)
        (folder / "server.key").write_bytes(b"half of a pair")
        await eventually(lambda: any("not used" in text for text in caplog.messages), "a complaint")
        assert await shown_by(broker.address) == before, "the old pair stays in use"
        for name in ("server.pem", "server.key"):
            (folder / name).write_bytes((certificates / name).read_bytes())
        renewed = ssl.PEM_cert_to_DER_cert((certificates / "server.pem").read_text())

        async def is_renewed() -> bool:
            return await shown_by(broker.address) == renewed

        await eventually(is_renewed, "the new certificate")


async def shown_by(address: str) -> bytes | None:
    """The certificate that a server presents."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, port = address.split(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    try:
        shown: ssl.SSLObject = writer.get_extra_info("ssl_object")
        return shown.getpeercert(binary_form=True)
    finally:
        writer.close()
        await writer.wait_closed()
