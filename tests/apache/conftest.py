"""Fixtures of the tests with Apache RocketMQ. JVMs start slowly, so each serves a whole session."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import pytest
from _pytest.capture import CaptureManager

from tests.support.apache import jars
from tests.support.apache.backends import OURS, Backend, running_backend
from tests.support.apache.servers import TOOLS_ONLY, VERSIONS, ApacheUnavailable, Shell, java_shells
from tests.support.gate import EACH_BACKEND
from tianzhou.client.group.settings import (
    ConsumerSettings,
    LitePullSettings,
    PushSettings,
    SimpleSettings,
)
from tianzhou.client.sending.settings import ProducerSettings
from tianzhou.client.settings import ClientSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_MS = 30_000


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """Longer default time-outs of our clients: a JVM without CPU time is not a dead broker."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in (
            ClientSettings, ProducerSettings, ConsumerSettings, PushSettings, LitePullSettings,
            SimpleSettings,
        ):  # fmt: skip
            defaults = kind.__init__.__kwdefaults__ or {}
            for name in {"api_timeout_ms", "send_timeout_ms"} & defaults.keys():
                patch.setitem(defaults, name, PATIENCE_MS)
        yield


@pytest.fixture(scope="session")
def apache(request: pytest.FixtureRequest) -> None:
    """Skip the test, with the reason, if Java or the jars are missing."""
    terminal = request.config.get_terminal_writer()
    capture = request.config.pluginmanager.getplugin("capturemanager")
    show: Callable[[], AbstractContextManager[None]] = nullcontext
    if isinstance(capture, CaptureManager):
        show = capture.global_and_fixture_disabled

    def announce(line: str) -> None:
        with show():
            terminal.line(f"\n{line}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jars, "announce", announce)
        try:
            for version in (*VERSIONS, TOOLS_ONLY):
                jars.classpath(version)
        except ApacheUnavailable as reason:
            pytest.skip(f"no Apache RocketMQ: {reason}")


@pytest.fixture(scope="session")
def shells(apache: None) -> Iterator[Callable[[str], Shell]]:
    """The stock clients and tools of a version, in a JVM that is started on first use."""
    with java_shells() as shell:
        yield shell


@pytest.fixture(
    scope="session",
    params=EACH_BACKEND,
)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """A cluster for the client suite: ours, or Apache's of a version."""
    kind: str = request.param
    if kind != OURS:
        request.getfixturevalue("apache")
    with running_backend(kind) as it:
        yield it


@pytest.fixture(scope="package")
def spark(apache: None) -> "Iterator[SparkSession]":
    """One session for all modules that read or write an Apache cluster with Spark."""
    pytest.importorskip("pyspark", reason="the extra spark is not installed: no pyspark")
    from tests.support.spark.fast_session import QUICK
    from tianzhou.spark import session

    made = session("apache", master="local[2]", configuration=QUICK)
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()
