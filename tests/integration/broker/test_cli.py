"""`tianzhou broker`, `mqbroker` and `tianzhou up` as programs."""

import asyncio
import http.client
import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest
from tests.integration.broker.test_crash import broker_process
from tests.support.brokers import (
    DEADLINE_S,
    LOOPBACK,
    SMALL,
    bodies_in,
    eventually,
    peer_of,
)
from tests.support.ports import free_port

from tianzhou.broker.config import load_broker_config
from tianzhou.cli.mqadmin import stock_entrypoints
from tianzhou.cli.serve import broker as command
from tianzhou.cli.serve.up import Up
from tianzhou.config.settings import Given
from tianzhou.errors import TianzhouError
from tianzhou.protocol.codes import ResponseCode


def is_gone(path: Path) -> bool:
    return not path.exists()


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tianzhou.cli.serve.broker", *arguments],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **environ},
    )  # fmt: skip


def test_the_configuration_is_printed_with_origins(tmp_path: Path) -> None:
    path = tmp_path / "broker.properties"
    path.write_text("listenPort=10921\nsendMessageThreadPoolNums=4\nbrokerNmae=x\n")
    done = run("-c", str(path), "--print-config", "--json", "--set", "brokerName=b",
               TIANZHOU_BROKER_REGION_ID="here")  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    rows = {row["key"]: row for row in printed["settings"]}
    assert (rows["listenPort"]["value"], rows["listenPort"]["origin"]) == ("10921", f"{path}:1")
    assert rows["brokerName"]["origin"] == "flag --set"
    assert rows["regionId"]["origin"] == "environment TIANZHOU_BROKER_REGION_ID"
    assert rows["flushDiskType"]["origin"] == "default"
    assert all(row["meaning"] for row in rows.values())
    assert "one event loop" in printed["notes"][0]
    assert "did you mean brokerName?" in printed["warnings"][0]
    table = run("-c", str(path), "--print-config").stdout
    assert "accepted, no effect:" in table


def test_keys_without_effect_are_listed_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "broker.properties"
    path.write_text("listenPort=10921\nsendMessageThreadPoolNums=4\ntotalReplicas=1\n")
    shown = run("-c", str(path), "--ignored-settings")
    assert shown.returncode == 0, shown.stderr
    threads, replicas = shown.stdout.splitlines()
    assert threads.startswith(f"{path}:2: sendMessageThreadPoolNums has no effect: one event loop")
    assert replicas.startswith(f"{path}:3: totalReplicas has no effect")
    assert len(json.loads(run("-c", str(path), "--ignored-settings", "--json").stdout)) == 2


def test_one_warning_counts_the_keys_without_effect(caplog: pytest.LogCaptureFixture) -> None:
    given = [Given(key, "1", "test") for key in ("sendMessageThreadPoolNums", "totalReplicas")]
    command.log_notes(load_broker_config(environ={}, flags=given))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "2 configuration keys" in record.getMessage()
    assert "--ignored-settings" in record.getMessage()


def test_invalid_settings_end_with_one_line(tmp_path: Path) -> None:
    path = tmp_path / "broker.properties"
    path.write_text("\nlistenPort=many\n")
    for arguments, complaint in (
        (["-c", str(path)], f"{path}:2"),
        (["--set", "brokerNmae=x"], "did you mean brokerName?"),
        (["--set", "novalue"], "KEY=VALUE"),
        (["-c", str(tmp_path / "missing")], "cannot be read"),
        (["--workers", "0"], "1 to 64"),
        (["--nonsense"], "--help"),
    ):
        done = run(*arguments)
        assert done.returncode == 2, (arguments, done.stderr)
        assert complaint in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_the_stock_command_prints_properties(capsys: pytest.CaptureFixture[str]) -> None:
    assert stock_entrypoints.mqbroker(["-n", "localhost:9876", "-p"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "namesrvAddr=localhost:9876" in lines
    assert "listenPort=10911" in lines


async def test_signal_stops_the_broker_cleanly_without_loss(tmp_path: Path) -> None:
    port, store = free_port(), tmp_path / "store"
    for number in range(2):
        async with broker_process(port, store) as process, peer_of(f"{LOOPBACK}:{port}") as peer:
            answer = await peer.send("t", b"%d" % number)
            assert answer.fields["queueOffset"] == str(number)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), DEADLINE_S) == 0
        assert not (store / "abort").exists()


def test_a_second_broker_on_the_same_store_is_refused(tmp_path: Path) -> None:
    async def go() -> None:
        async with broker_process(free_port(), tmp_path / "store"):
            flags = [
                part
                for key, value in (SMALL | {"storePathRootDir": tmp_path / "store"}).items()
                for part in ("--set", f"{key}={value}")
            ]
            done = await asyncio.to_thread(run, "--log-level", "error", *flags)
            assert done.returncode == 1
            assert "store" in done.stderr
            assert "Traceback" not in done.stderr

    asyncio.run(go())


SIGNALS = {"stopped": signal.SIGTERM, "killed": signal.SIGKILL}


@pytest.mark.parametrize("end", list(SIGNALS))
async def test_workers_are_restarted_and_end_with_their_parent(tmp_path: Path, end: str) -> None:
    port = free_port(10)
    pairs = SMALL | {
        "listenPort": port, "storePathRootDir": tmp_path / "store", "vipListenEnable": "false",
    }  # fmt: skip
    flags = [part for key, value in pairs.items() for part in ("--set", f"{key}={value}")]
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tianzhou.cli.serve.broker", "--workers", "2", *flags,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert parent.stderr is not None
    log: list[str] = []

    async def collect_log(lines: asyncio.StreamReader) -> None:
        while line := await lines.readline():
            log.append(line.decode())

    collecting = asyncio.create_task(collect_log(parent.stderr))
    try:
        addresses = [f"{LOOPBACK}:{port + 10 * number}" for number in range(2)]
        async with peer_of(addresses[0]) as first, peer_of(addresses[1]) as second:

            async def answers() -> bool:
                try:
                    sent = [await peer.send("t", b"x") for peer in (first, second)]
                except TianzhouError:
                    return False
                return all(answer.code == ResponseCode.SUCCESS for answer in sent)

            await eventually(answers, f"both workers answer: {log}")
            assert (tmp_path / "store-0").is_dir()
            assert (tmp_path / "store-1").is_dir()
            starts = [line for line in log if "worker 0: process" in line]
            os.kill(int(starts[0].split()[-1]), signal.SIGKILL)
            await eventually(
                lambda: sum("worker 0: process" in line for line in log) == 2, "started again"
            )
            await eventually(answers, "both answer again")
            assert bodies_in(await first.pull("g", "t", 0, 0))[0] == b"x"
        parent.send_signal(SIGNALS[end])
        await asyncio.wait_for(parent.wait(), DEADLINE_S)
        for number in range(2):
            abort = tmp_path / f"store-{number}" / "abort"
            await eventually(partial(is_gone, abort), "stopped cleanly")
    finally:
        if parent.returncode is None:
            parent.terminate()
            await parent.wait()
        await collecting


async def test_up_starts_both_servers_with_their_data_in_one_folder(tmp_path: Path) -> None:
    program = Up(tmp_path / "data", namesrv_port=0, broker_port=0, listen=LOOPBACK)
    try:
        await program.start()
        async with peer_of(program.broker_address) as peer:
            assert (await peer.send("t", b"x", props={"a": "5"})).code == ResponseCode.SUCCESS
            pulled = await peer.pull("g", "t", 0, 0, subscription="a = 5", expression_type="SQL92")
            assert bodies_in(pulled) == [b"x"]
    finally:
        await program.stop()
    assert (tmp_path / "data" / "store" / "config" / "topics.json").exists()


def test_container_command_serves_and_reports_its_health(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "deploy" / "Containerfile").read_text()
    (command_json,) = re.findall(r"^CMD (.*)$", text, re.MULTILINE)
    given: list[str] = json.loads(command_json)
    assert given.pop(0) == "tianzhou"
    arguments = [str(tmp_path / "data") if argument == "/data" else argument for argument in given]
    arguments = [LOOPBACK if argument == "0.0.0.0" else argument for argument in arguments]  # noqa: S104 - not bound
    port = free_port()
    arguments += ["--namesrv-port", "0", "--port", str(free_port())]
    pairs = {
        "mappedFileSizeCommitLog": SMALL["mappedFileSizeCommitLog"],
        "metricsExporterType": "PROM", "metricsPromExporterHost": LOOPBACK,
        "metricsPromExporterPort": port,
    }  # fmt: skip
    for key, value in pairs.items():
        arguments += ["--set", f"{key}={value}"]
    program = subprocess.Popen(
        [sys.executable, "-m", "tianzhou", *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline().startswith("nameserver 127.0.0.1:")
        connection = http.client.HTTPConnection(LOOPBACK, port, timeout=DEADLINE_S)
        connection.request("GET", "/health")
        assert connection.getresponse().read() == b"ok\n"
        connection.close()
        program.send_signal(signal.SIGTERM)
        program.communicate(timeout=DEADLINE_S)
    finally:
        program.kill()
        program.wait()
    assert program.returncode == 0


def test_up_listens_on_loopback_only_also_for_metrics(tmp_path: Path) -> None:
    port = free_port()
    arguments = ["up", "--data", str(tmp_path / "data"), "--namesrv-port", "0", "--port", "0"]
    pairs = {
        "mappedFileSizeCommitLog": SMALL["mappedFileSizeCommitLog"],
        "metricsExporterType": "PROM", "metricsPromExporterPort": port,
    }  # fmt: skip
    for key, value in pairs.items():
        arguments += ["--set", f"{key}={value}"]
    program = subprocess.Popen(
        [sys.executable, "-m", "tianzhou", *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline().startswith("nameserver 127.0.0.1:")
        sockets = psutil.Process(program.pid).net_connections(kind="inet")
        listening = [each.laddr for each in sockets if each.status == psutil.CONN_LISTEN]
    finally:
        program.kill()
        program.communicate()
    assert port in {each.port for each in listening}
    assert {each.ip for each in listening} == {LOOPBACK}


def test_up_shows_messages_flowing_and_stops_on_interrupt(tmp_path: Path) -> None:
    arguments = ["up", "--demo", "--data", str(tmp_path / "data")]
    arguments += ["--namesrv-port", "0", "--port", str(free_port())]
    for setting in ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue"):
        arguments += ["--set", f"{setting}={SMALL[setting]}"]
    program = subprocess.Popen(
        [sys.executable, "-m", "tianzhou", *arguments], stdout=subprocess.PIPE, text=True
    )
    shown: list[str] = []
    try:
        assert program.stdout is not None
        for line in program.stdout:
            shown.append(line)
            if "<- received cargo 2" in line:
                break
        program.send_signal(signal.SIGINT)
        shown += program.communicate(timeout=DEADLINE_S)[0].splitlines(keepends=True)
    finally:
        program.kill()
        program.wait()
    text = "".join(shown)
    assert program.returncode == 0, text
    assert shown[0].startswith("nameserver 127.0.0.1:"), text
    assert "-> sent     cargo 1 to queue 1, stored at offset 0" in text
    assert "<- received cargo 1 from queue 1" in text
    assert "the demonstration failed" not in text
