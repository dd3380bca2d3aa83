"""`tianzhou up --layout`: nameservers, masters and slaves on one machine."""

import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from tests.support.brokers import DEADLINE_S, LOOPBACK, SMALL, eventually
from tests.support.ports import free_port, is_free

from tianzhou.admin.admin_client import Admin
from tianzhou.cli.serve.layouts import LAYOUTS, UpLayout, started_text
from tianzhou.config.settings import Given
from tianzhou.errors import ConfigError

SIZES = ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")


@pytest.mark.parametrize("layout", list(LAYOUTS))
async def test_a_layout_registers_all_its_brokers_and_stops_them(
    tmp_path: Path, layout: str
) -> None:
    first = free_port(*range(-2, 40))
    program = UpLayout(
        layout, tmp_path, namesrv_port=0, broker_port=first, listen=LOOPBACK,
        more=[Given(key, str(SMALL[key]), "test") for key in SIZES],
    )  # fmt: skip
    try:
        await program.start()
        namesrvs = program.namesrv_address.split(";")
        assert len(namesrvs) == 2
        planned = {
            (each.name, each.broker_id): f"{LOOPBACK}:{first + 10 * number}"
            for number, each in enumerate(LAYOUTS[layout])
        }

        async def registered(namesrv: str) -> bool:
            async with Admin(namesrv) as admin:
                info = await admin.clusters.info()
            seen = {
                (name, number): address
                for name, data in info.brokers.items()
                for number, address in (data.addresses or {}).items()
            }
            return seen == planned

        for namesrv in namesrvs:
            await eventually(partial(registered, namesrv), "all brokers at each nameserver")
        text = started_text(program)
        for each in LAYOUTS[layout]:
            assert re.search(rf"(?m)^{re.escape(each.label)} +{each.role} +{each.host} ", text)
        assert "Ctrl-C stops everything" in text
    finally:
        await program.stop()
    for port in range(first, first + 10 * len(planned), 10):
        assert is_free(port)


def test_a_layout_refuses_settings_that_its_brokers_cannot_share(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="flag --set: brokerRole is different for each broker"):
        UpLayout(
            "2m-2s-sync", tmp_path, namesrv_port=0, broker_port=0, listen=LOOPBACK,
            more=[Given("brokerRole", "SLAVE", "flag --set")],
        )  # fmt: skip
    with pytest.raises(ConfigError, match="port 65530 leaves no ports"):
        UpLayout("2m-noslave", tmp_path, namesrv_port=0, broker_port=65530, listen=LOOPBACK)


def test_up_with_a_layout_prints_what_runs_where_and_stops_on_interrupt(tmp_path: Path) -> None:
    arguments = ["up", "--layout", "2m-2s-sync", "--data", str(tmp_path / "data")]
    arguments += ["--namesrv-port", str(free_port(1)), "--port", str(free_port(*range(-2, 40)))]
    for setting in SIZES:
        arguments += ["--set", f"{setting}={SMALL[setting]}"]
    program = subprocess.Popen(
        [sys.executable, "-m", "tianzhou", *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout is not None
        lines = [program.stdout.readline() for _ in range(8)]
        assert lines[0].split() == ["SERVER", "ROLE", "STANDS", "FOR", "ADDRESS", "DATA"]
        assert [line.split()[0] for line in lines[3:7]] == [
            "broker-a", "broker-a[1]", "broker-b", "broker-b[1]",
        ]  # fmt: skip
        assert lines[7].startswith("layout 2m-2s-sync in one process")
        program.send_signal(signal.SIGINT)
        program.communicate(timeout=DEADLINE_S)
    finally:
        program.kill()
        program.wait()
    assert program.returncode == 0
