"""The nameserver as users run it: commands, signals, files, exit codes."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trustme
from tests.support.namesrv import (
    PATIENCE_S,
    Asker,
    Broker,
    Process,
    asking,
    environment,
    run,
    started,
)

from tianzhou.errors import ConnectError, RemotingError
from tianzhou.protocol.codes import RequestCode
from tianzhou.remoting.client import Client
from tianzhou.remoting.tls.contexts import Tls

PAIR = {"namespace": "ns", "key": "k"}


def stop(process: Process, number: signal.Signals = signal.SIGTERM) -> int:
    process.popen.send_signal(number)
    return process.popen.wait(PATIENCE_S)


async def put_and_get(address: str, value: str | None) -> str | None:
    async with asking(address) as asker:
        if value is not None:
            await asker.get(RequestCode.PUT_KV_CONFIG, PAIR | {"value": value})
        return (await asker.ask(RequestCode.GET_KV_CONFIG, PAIR)).fields.get("value")


# -- starting and stopping ------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path, "tianzhou", "namesrv", "--port", "0") as process:
        assert "serializeType=JSON, address 0.0.0.0:" in process.text()
        with socket.create_connection(("127.0.0.1", process.port)) as idle:
            assert stop(process, number) == 0
            idle.settimeout(PATIENCE_S)
            assert idle.recv(1) == b""
        assert f"namesrv: stopping on {number.name}" in process.text()
        assert "namesrv: stopped" in process.text()
        assert "Traceback" not in process.text()
        assert not list((tmp_path / "run").iterdir())


def test_stock_names_options_and_lines_work(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.properties"
    file.write_text(f"listenPort=0\nkvConfigPath={tmp_path}/kv.json\nrocketmqHome=/opt/rocketmq\n")
    with started(tmp_path, "mqnamesrv", "-c", str(file), "-n", "127.0.0.1:9876") as process:
        assert process.text().startswith(f"load config properties file OK, {file}\n")
        assert asyncio.run(put_and_get(process.address, "v")) == "v"
        assert stop(process) == 0
    assert json.loads((tmp_path / "kv.json").read_bytes()) == {"configTable": {"ns": {"k": "v"}}}


def test_kv_pairs_and_changed_settings_survive_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.properties"
    file.write_text("# mine\nlistenPort=0\norderMessageEnable=false\n")

    async def update(address: str) -> None:
        async with asking(address) as asker:
            await asker.get(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true")

    with started(tmp_path, "tianzhou", "namesrv", "--config", str(file)) as process:
        assert asyncio.run(put_and_get(process.address, "v")) == "v"
        asyncio.run(update(process.address))
        process.popen.kill()
    assert file.read_text() == "# mine\nlistenPort=0\norderMessageEnable=true\n"

    async def settings(asker: Asker) -> str:
        return (await asker.get(RequestCode.GET_NAMESRV_CONFIG)).body.decode()

    with started(tmp_path, "tianzhou", "namesrv", "--config", str(file)) as process:
        assert asyncio.run(put_and_get(process.address, None)) == "v"

        async def shown() -> str:
            async with asking(process.address) as asker:
                return await settings(asker)

        assert "orderMessageEnable=true\n" in asyncio.run(shown())


def test_the_default_kv_file_is_rocketmqs(tmp_path: Path) -> None:
    with started(tmp_path, "tianzhou", "namesrv", "--port", "0") as process:
        assert asyncio.run(put_and_get(process.address, "v")) == "v"
    assert (tmp_path / "namesrv" / "kvConfig.json").exists()


def test_settings_come_from_flags_then_environment_then_file(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.properties"
    file.write_text("listenPort=1\nwaitSecondsForService=1\nenableTopicList=false\n")
    shown = run(
        tmp_path, "tianzhou", "namesrv", "--config", str(file), "--port", "3",
        "--set", "orderMessageEnable=true", "--print-config", "--json",
        TIANZHOU_NAMESRV_LISTEN_PORT="2", TIANZHOU_NAMESRV_WAIT_SECONDS_FOR_SERVICE="2",
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    rows = {row["key"]: (row["value"], row["origin"]) for row in json.loads(shown.stdout)}
    assert rows["listenPort"] == ("3", "flag --port")
    assert rows["orderMessageEnable"] == ("true", "flag --set")
    assert rows["waitSecondsForService"] == (
        "2",
        "environment TIANZHOU_NAMESRV_WAIT_SECONDS_FOR_SERVICE",
    )
    assert rows["enableTopicList"] == ("false", f"{file}:3")
    assert rows["configStorePath"] == (str(file), str(file))
    assert rows["bindAddress"] == ("0.0.0.0", "default")  # noqa: S104 - compared with, not bound


def test_ipv6(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with started(tmp_path, "tianzhou", "namesrv", "--port", "0", "--listen", "::1") as process:
        assert asyncio.run(put_and_get(f"[::1]:{process.port}", "v")) == "v"


def test_an_unknown_key_is_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.properties"
    file.write_text("listenPort=0\norderMesageEnable=true\ndefaultThreadPoolNums=16\n")
    with started(tmp_path, "mqnamesrv", "-c", str(file)) as process:
        text = process.text()
        assert f"{file}:2: unknown key orderMesageEnable, did you mean orderMessageEnable?" in text
        assert f"{file}:3: defaultThreadPoolNums has no effect: one event loop" in text


# -- errors ---------------------------------------------------------------------------------------


def one_line(text: str) -> str:
    assert text.count("\n") == 1, text
    return text.rstrip("\n")


def test_a_port_in_use_is_one_line_and_exit_1(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:  # noqa: S104 - the port must be taken
        port = taken.getsockname()[1]
        ended = run(tmp_path, "tianzhou", "namesrv", "--port", str(port), "--log-level", "error")
    assert ended.returncode == 1
    assert one_line(ended.stderr).startswith("namesrv: cannot listen on ")
    assert "in use" in ended.stderr


def test_a_broken_kv_file_is_one_line_and_exit_1(tmp_path: Path) -> None:
    kv = tmp_path / "kv.json"
    kv.write_text("{")
    ended = run(tmp_path, "tianzhou", "namesrv", "--port", "0", "--kv-config", str(kv))
    assert ended.returncode == 1
    assert f"KV configuration {kv} is broken" in one_line(ended.stderr)
    assert kv.read_text() == "{"


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        (["tlsServerCertPath=/nowhere.pem"], "TLS certificate and key (/nowhere.pem)"),
        (["tlsMode=enforcing"], "tlsMode enforcing needs tlsServerCertPath"),
    ],
)
def test_unusable_tls_settings_are_one_line_and_exit_1(
    tmp_path: Path, pairs: list[str], expected: str
) -> None:
    flags = [word for pair in pairs for word in ("--set", pair)]
    ended = run(tmp_path, "tianzhou", "namesrv", "--port", "0", *flags)
    assert ended.returncode == 1
    assert expected in one_line(ended.stderr)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--config", "nowhere.properties"], "nowhere.properties: cannot be read: No such file"),
        (["--config", "bad.properties"], "bad.properties:2: listenPort: 'x' is not a whole number"),
        (["--port", "99999"], "flag --port: listenPort: '99999' is not a whole number from 0 to"),
        (["--set", "listenProt=1"], "flag --set: unknown key listenProt, did you mean listenPort"),
        (["--set", "listenPort"], "--set listenPort: write KEY=VALUE"),
        (["--nonsense"], "unrecognized arguments: --nonsense; see tianzhou namesrv --help"),
    ],
)
def test_wrong_use_is_one_line_and_exit_2(
    tmp_path: Path, arguments: list[str], expected: str
) -> None:
    (tmp_path / "bad.properties").write_text("# comment\nlistenPort=x\n")
    ended = run(tmp_path, "tianzhou", "namesrv", *arguments)
    assert ended.returncode == 2
    assert one_line(ended.stderr).startswith("tianzhou namesrv: ")
    assert expected in ended.stderr
    assert ended.stdout == ""


# -- stopping from outside ------------------------------------------------------------------------


def test_mqshutdown_stops_every_nameserver_of_this_user(tmp_path: Path) -> None:
    with (
        started(tmp_path, "mqnamesrv", TIANZHOU_NAMESRV_LISTEN_PORT="0") as one,
        started(tmp_path, "tianzhou", "namesrv", "--port", "0") as other,
    ):
        ended = run(tmp_path, "mqshutdown", "namesrv")
        assert ended.returncode == 0
        for process in (one, other):
            pid = process.popen.pid
            assert f"The mqnamesrv({pid}) is running...\n" in ended.stdout
            assert f"Send shutdown request to mqnamesrv({pid}) OK\n" in ended.stdout
            assert process.popen.wait(PATIENCE_S) == 0
        assert "namesrv: stopped" in one.text()
    again = run(tmp_path, "mqshutdown", "namesrv")
    assert (again.returncode, again.stdout) == (1, "No mqnamesrv running.\n")


def test_stop_waits_until_it_has_ended(tmp_path: Path) -> None:
    with started(tmp_path, "tianzhou", "namesrv", "--port", "0") as process:
        ended = run(tmp_path, "tianzhou", "stop", "namesrv", "--wait", "60")
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.endswith("mqnamesrv has stopped\n")
        assert "namesrv: stopped" in process.text()


def test_stop_reports_a_process_that_does_not_end_in_time(tmp_path: Path) -> None:
    with started(tmp_path, "tianzhou", "namesrv", "--port", "0") as process:
        process.popen.send_signal(signal.SIGSTOP)
        ended = run(tmp_path, "tianzhou", "stop", "namesrv", "--wait", "0.2")
        assert ended.returncode == 1
        pid = process.popen.pid
        assert f"mqnamesrv {pid} still running after 0.2 s" in one_line(ended.stderr)


def test_mqshutdown_does_not_stop_other_processes(tmp_path: Path) -> None:
    """A killed nameserver leaves its file behind, and its process id may be reused."""
    with started(tmp_path, "tianzhou", "namesrv", "--port", "0") as process:
        process.popen.kill()
    (left_over,) = (tmp_path / "run").iterdir()
    content = json.loads(left_over.read_bytes())
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        left_over.write_text(json.dumps(content | {"pid": stranger.pid}))
        ended = run(tmp_path, "mqshutdown", "namesrv")
        assert (ended.returncode, ended.stdout) == (1, "No mqnamesrv running.\n")
        assert stranger.poll() is None
        assert not left_over.exists()
    finally:
        stranger.kill()
        stranger.wait(PATIENCE_S)


def test_it_serves_also_if_the_run_folder_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with started(
        tmp_path, "tianzhou", "namesrv", "--port", "0", TIANZHOU_RUN_DIR=str(tmp_path / "plain/run")
    ) as process:
        assert asyncio.run(put_and_get(process.address, "v")) == "v"
        assert "mqshutdown will not find this process" in process.text()
        assert stop(process) == 0


# -- the other commands ---------------------------------------------------------------------------


def test_mqnamesrv_prints_its_settings(tmp_path: Path) -> None:
    shown = run(tmp_path, "mqnamesrv", "-p")
    assert shown.returncode == 0
    lines = shown.stdout.splitlines()
    assert "listenPort=9876" in lines
    assert lines == sorted(lines)


def test_mqadmin_without_a_sub_command_is_an_error(tmp_path: Path) -> None:
    ended = run(tmp_path, "mqadmin", "-n", "127.0.0.1:9876")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "there is no subcommand '-n'" in one_line(ended.stderr)


def test_mqbroker_prints_its_settings(tmp_path: Path) -> None:
    shown = run(tmp_path, "mqbroker", "-p", "-n", "127.0.0.1:9876")
    assert shown.returncode == 0
    assert "listenPort=10911" in shown.stdout.splitlines()


def test_version_names_the_kernel_in_use_and_the_reason(tmp_path: Path) -> None:
    printed = json.loads(run(tmp_path, "tianzhou", "version", "--json", TIANZHOU_PURE="1").stdout)
    assert printed["kernel"] == "pure"
    assert printed["why_pure"] == "switched off by TIANZHOU_PURE"
    text = run(tmp_path, "tianzhou", "version", TIANZHOU_PURE="1").stdout
    assert text.startswith(f"tianzhou {printed['version']}\nkernel: pure Python (switched off by")


@pytest.mark.parametrize("command", ["tianzhou", "mqnamesrv", "mqshutdown"])
def test_help_is_printed(tmp_path: Path, command: str) -> None:
    shown = run(tmp_path, command, "-h")
    assert shown.returncode == 0
    assert "usage" in shown.stdout.lower()


def test_the_nameserver_is_a_command_of_the_application_too(tmp_path: Path) -> None:
    code = "from tianzhou.cli.app import app; app(['namesrv', '--set', 'x'])"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 2
    assert "--set x: write KEY=VALUE" in one_line(ended.stderr)


# -- TLS ------------------------------------------------------------------------------------------


def write_certificate(folder: Path, authority: trustme.CA) -> list[str]:
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    return [
        "--set", f"tls.server.certPath={folder / 'cert.pem'}",
        "--set", f"tls.server.keyPath={folder / 'key.pem'}",
    ]  # fmt: skip


async def register_over(address: str, client: Client) -> None:
    try:
        await Broker().register(Asker(address, client))
    finally:
        await client.close()


def test_one_port_serves_plain_and_tls(tmp_path: Path) -> None:
    flags = write_certificate(tmp_path, trustme.CA())
    with started(tmp_path, "tianzhou", "namesrv", "--port", "0", *flags) as process:

        async def both() -> None:
            await register_over(process.address, Client())
            await register_over(process.address, Client(tls=Tls(trusted=tmp_path / "ca.pem")))

        asyncio.run(both())


def test_enforced_tls_refuses_plain_peers(tmp_path: Path) -> None:
    flags = [*write_certificate(tmp_path, trustme.CA()), "--set", "tlsMode=enforcing"]
    with started(tmp_path, "tianzhou", "namesrv", "--port", "0", *flags) as process:

        async def both() -> None:
            await register_over(process.address, Client(tls=Tls(trusted=tmp_path / "ca.pem")))
            with pytest.raises(RemotingError):
                await register_over(process.address, Client())

        asyncio.run(both())


def test_renewed_certificates_are_used_without_a_restart(tmp_path: Path) -> None:
    flags = write_certificate(tmp_path, trustme.CA())
    scan = ("--set", "scanNotActiveBrokerInterval=20")
    with started(tmp_path, "tianzhou", "namesrv", "--port", "0", *flags, *scan) as process:
        write_certificate(tmp_path, trustme.CA())

        async def reach() -> None:
            deadline_s = time.monotonic() + PATIENCE_S
            while True:
                client = Client(tls=Tls(trusted=tmp_path / "ca.pem"))
                try:
                    await register_over(process.address, client)
                except ConnectError:
                    assert time.monotonic() < deadline_s, process.text()
                    await asyncio.sleep(0.02)
                else:
                    return

        asyncio.run(reach())
        assert "TLS: new certificates are used" in process.text()
