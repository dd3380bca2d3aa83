"""What many tests share."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tianzhou.protocol import kernel

# A test says what is right, not how fast the machine was at that moment, and each time the same.
# `pytest --hypothesis-profile=explore` looks somewhere else in every run.
_PATIENT: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("tianzhou", derandomize=True, **_PATIENT)
settings.register_profile("explore", **_PATIENT)
settings.load_profile("tianzhou")

# A shell lets what it starts in the background ignore Ctrl-C, and programs pass that on; ours are
# tested with it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module", params=["kernel", "pure"])
def codec(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a module's tests on the compiled kernel and on its pure twin."""
    variant: str = request.param
    if variant == "kernel" and kernel.WHY_PURE is not None:
        pytest.skip(f"no compiled kernel: {kernel.WHY_PURE}")
    with pytest.MonkeyPatch.context() as patch:
        if variant == "pure":
            patch.setattr(kernel, "native", None)
        yield variant
