"""`tianzhou tls init`: what it writes is what servers and clients take."""

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest
import trustme

from tianzhou.cli.commands.tls import make_certificates
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.client import Client
from tianzhou.remoting.tls.contexts import Tls
from tianzhou.testing import Cluster


def test_servers_and_clients_use_the_certificates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make_certificates(tmp_path, ["localhost", "127.0.0.1"]) == 0
    shown = capsys.readouterr().out
    lines = (line.strip() for line in shown.splitlines())
    told: dict[str, Any] = dict(line.split("=", 1) for line in lines if "=" in line)
    assert told["tlsMode"] == "enforcing"

    async def ask(trusted: Path) -> int:
        client = Client(tls=Tls(trusted=trusted))
        try:
            command = Command(code=RequestCode.GET_BROKER_CONFIG)
            return (await client.request(cluster.broker_addresses["broker-0"], command)).code
        finally:
            await client.close()

    with Cluster(**told) as cluster:
        assert asyncio.run(ask(tmp_path / "ca.pem")) == 0
        # The authority stays, so clients need no change when certificates are made anew.
        before = (tmp_path / "server.pem").read_bytes()
        assert make_certificates(tmp_path, ["127.0.0.1"]) == 0
        assert (tmp_path / "server.pem").read_bytes() != before
        assert asyncio.run(ask(tmp_path / "ca.pem")) == 0


def test_keys_are_readable_by_owner_only(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["localhost"])
    for name in ("ca.key", "server.key", "client.key"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_invalid_ca_or_folder_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert make_certificates(tmp_path / "file" / "x", ["localhost"]) == 1
    (tmp_path / "ca.pem").write_text("no certificate")
    (tmp_path / "ca.key").write_bytes(trustme.CA().private_key_pem.bytes())
    assert make_certificates(tmp_path, ["localhost"]) == 1
    assert capsys.readouterr().err.count("tianzhou tls init: ") == 2
