"""Notes what the tests of the command line try, and lets the test that judges it come last."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import commands_tried

JUDGE = "test_every_command_and_option_is_tested"


@pytest.fixture(scope="session", autouse=True)
def notes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        commands_tried.record(patch)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.name == JUDGE)


@pytest.fixture
def all_of_the_command_line(request: pytest.FixtureRequest) -> None:
    """Skips a judgement of all tests where only some of them run."""
    here = Path(__file__).parent / "cli"
    wanted = {path.name for path in here.glob("test_*.py")}
    missing = wanted - {item.path.name for item in request.session.items}
    if missing or request.config.getoption("keyword"):
        pytest.skip(f"only some tests of the command line run here: without {sorted(missing)}")
