"""Numbers and shares as pages show them."""

import pytest

from tianzhou.console.web import figures


@pytest.mark.parametrize(
    ("ratio", "shown"),
    [
        (None, "?"), (0, "0 %"), (0.0001, "< 0.1 %"), (0.003, "0.3 %"), (0.099, "9.9 %"),
        (0.0996, "10 %"), (0.44, "44 %"), (1, "100 %"),
    ],
)  # fmt: skip
def test_a_share_below_ten_percent_has_tenths(ratio: float | None, shown: str) -> None:
    assert figures.percent(ratio) == shown
