"""A short run of the fuzzer for every decoder; `make fuzz` does a million inputs each."""

from collections.abc import Iterator

import pytest

from tests.fuzz.run import fuzz
from tests.fuzz.targets import TARGETS, Target, close
from tianzhou.errors import ProtocolError

COUNT = 20_000


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    yield
    close()


def is_read(target: Target, data: bytes) -> bool:
    try:
        target.decode(data)
    except ProtocolError:
        return False
    return True


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_decoder_returns_or_raises_protocol_error(target: Target) -> None:
    answered, refused = fuzz(target, COUNT, seed=20_260)
    assert answered + refused == COUNT


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_seed_inputs_are_valid(target: Target) -> None:
    """Otherwise mutation would start from invalid input and never pass the first check."""
    corpus = target.corpus()
    assert sum(is_read(target, data) for data in corpus) >= len(corpus) / 4
