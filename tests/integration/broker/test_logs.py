"""Logs of a broker: slow requests, and files of JSON lines."""

import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.brokers import cluster, running_broker

from tianzhou.config.log_settings import LogLevel
from tianzhou.protocol import kernel
from tianzhou.protocol.codes import RequestCode, ResponseCode

PROGRAM = {
    "broker": ["broker", "--store", "store", "--name", "b", "--listen", "127.0.0.1"],
    "namesrv": ["namesrv", "--kv-config", "kv.json", "--listen", "127.0.0.1"],
    "up": ["up", "--data", "data", "--namesrv-port", "0"],
}


async def test_the_first_line_says_which_implementation_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="tianzhou.broker")
    async with running_broker(tmp_path):
        first = next(each for each in caplog.records if each.name.startswith("tianzhou.broker"))
    name = "the compiled kernel" if kernel.WHY_PURE is None else "pure-Python codecs ("
    assert first.getMessage().startswith(f"broker broker-a: starting, with {name}")


async def test_slow_requests_are_logged_and_the_threshold_is_live(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def slow_requests() -> list[dict[str, Any]]:
        return [
            vars(each)
            for each in caplog.records
            if each.name == "tianzhou.broker.requests.slow_log"
        ]

    async with cluster(tmp_path, slowRequestThresholdMills=600_000) as it:
        # Decoding thousands of subscriptions is slow.
        many = {f"topic-{number}": "*" for number in range(3000)}
        assert (await it.peer.heartbeat("c", "g", many)).code == ResponseCode.SUCCESS
        assert not slow_requests()
        change = b"slowRequestThresholdMills=1\n"
        await it.peer.expect(RequestCode.UPDATE_BROKER_CONFIG, {}, change)
        caplog.clear()
        assert (await it.peer.heartbeat("c", "g", many, version=2)).code == ResponseCode.SUCCESS
        (logged,) = [each for each in slow_requests() if each["code"] == RequestCode.HEART_BEAT]
        assert logged["took_ms"] >= 1
        assert logged["peer"].startswith("127.0.0.1:")
        caplog.clear()
        await it.peer.expect(RequestCode.UPDATE_BROKER_CONFIG, {}, change.replace(b"1", b"0"))
        caplog.clear()
        assert (await it.peer.heartbeat("c", "g", many, version=3)).code == ResponseCode.SUCCESS
        assert not slow_requests()


@pytest.mark.parametrize("program", PROGRAM)
async def test_a_server_logs_into_a_file_of_json_lines(tmp_path: Path, program: str) -> None:
    log_file = tmp_path / "logs" / "server.log"
    flags = [
        "--log-file", str(log_file), "--log-json", "--log-level", "info", "--log-file-size", "1M",
        "--log-file-count", "3",
    ]  # fmt: skip
    port = ["--port", "0"]
    command = [sys.executable, "-m", "tianzhou", *PROGRAM[program], *port, *flags]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path, env=os.environ | {"HOME": str(tmp_path)},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            assert await process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            _, error = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    assert error == b"", "what is no error is in the file alone"
    lines = [json.loads(line) for line in log_file.read_text().splitlines()]
    messages = [line["message"] for line in lines]
    assert any(message.startswith("listening on") for message in messages)
    assert any("stopping on SIGTERM" in message for message in messages)
    assert all(line["level"] and line["logger"] and line["time"] for line in lines)


@pytest.mark.parametrize("program", PROGRAM)
async def test_unwritable_log_file_ends_with_one_line_and_usage_status(
    tmp_path: Path, program: str
) -> None:
    command = [sys.executable, "-m", "tianzhou", *PROGRAM[program], "--log-file", str(tmp_path)]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path, env=os.environ | {"HOME": str(tmp_path)},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(30):
        out, error = await process.communicate()
    assert (process.returncode, out) == (2, b"")
    assert b"logFile" in error
    assert error.count(b"\n") == 1


def test_log_levels_follow_the_setting() -> None:
    assert {each.upper() for each in LogLevel} <= set(logging.getLevelNamesMapping())
