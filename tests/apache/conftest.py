"""What the tests with Apache RocketMQ share. JVMs start slowly, so they serve a whole session."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext

import pytest
from _pytest.capture import CaptureManager

from tests.apache import jars
from tests.apache.backends import BACKENDS, OURS, Backend, running_backend
from tests.apache.kit import VERSIONS, ApacheUnavailable, Shell, java_shell


@pytest.fixture(scope="session")
def apache(request: pytest.FixtureRequest) -> None:
    """Java and the jars are there; without them the test is skipped, with the reason."""
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
            for version in VERSIONS:
                jars.classpath(version)
        except ApacheUnavailable as reason:
            pytest.skip(f"no Apache RocketMQ: {reason}")


@pytest.fixture(scope="session")
def shells(apache: None) -> Iterator[Callable[[str], Shell]]:
    """The stock clients and tools of a version, in a JVM that is started when first asked for."""
    started: dict[str, Shell] = {}
    with ExitStack() as stack:

        def shell(version: str) -> Shell:
            if version not in started:
                started[version] = stack.enter_context(java_shell(version))
            return started[version]

        yield shell


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(kind, marks=() if kind == OURS else pytest.mark.apache) for kind in BACKENDS
    ],
)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """A cluster for the client suite: ours, or Apache's of a version."""
    kind: str = request.param
    if kind != OURS:
        request.getfixturevalue("apache")
    with running_backend(kind) as it:
        yield it
