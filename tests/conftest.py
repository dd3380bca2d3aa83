"""Fixtures and settings of all tests."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tianzhou.protocol import kernel

# Without deadlines and with fixed seeds: results depend neither on the speed of the machine nor on
# the run. `pytest --hypothesis-profile=explore` uses other examples in every run.
_PATIENT: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("tianzhou", derandomize=True, **_PATIENT)
settings.register_profile("explore", **_PATIENT)
settings.load_profile("tianzhou")

# Shells let background processes ignore SIGINT, and children inherit that; our programs are tested
# with Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module", params=["kernel", "pure"])
def codec(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a module's tests with the compiled kernel and in pure Python."""
    variant: str = request.param
    if variant == "kernel" and kernel.WHY_PURE is not None:
        pytest.skip(f"no compiled kernel: {kernel.WHY_PURE}")
    with pytest.MonkeyPatch.context() as patch:
        if variant == "pure":
            patch.setattr(kernel, "native", None)
        yield variant
