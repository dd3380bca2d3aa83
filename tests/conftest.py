"""What many tests share."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tianzhou.protocol import kernel

# A test says what is right, not how fast the machine was at that moment.
settings.register_profile("tianzhou", deadline=None)
settings.load_profile("tianzhou")


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
