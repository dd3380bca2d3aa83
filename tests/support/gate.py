"""Selects the parameters that `make test` runs, and those that only `make test-all` adds.

The marker `full` is on everything that `make test` leaves out; CONTRIBUTING.md says why for each
file.
"""

from collections.abc import Container, Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from tests.support.apache.backends import BACKENDS, OURS
from tests.support.apache.jars import TOOLS_ONLY, VERSIONS
from tianzhou.protocol import kernel

NEWEST = VERSIONS[-1]
"""The version of Apache RocketMQ that `make test` runs."""


def gated(values: Iterable[Any], gate: Container[Any]) -> list[ParameterSet]:
    """Parameters; those that are not in `gate` run in `make test-all` only."""
    return [pytest.param(each, marks=() if each in gate else pytest.mark.full) for each in values]


def some_of(values: Iterable[Any], every: int) -> list[ParameterSet]:
    """Parameters, or what `pytest.param` made; only one in so many runs in `make test`."""
    made = [each if isinstance(each, ParameterSet) else pytest.param(each) for each in values]
    return [
        each._replace(marks=[*each.marks, pytest.mark.full]) if number % every else each
        for number, each in enumerate(made)
    ]


EACH_CODEC = gated(("kernel", "pure"), {"kernel" if kernel.WHY_PURE is None else "pure"})
"""For the fixture `codec` of slow tests: the gate has the kernel if there is one."""
EACH_VERSION = gated(VERSIONS, {NEWEST})
EACH_TOOL = gated((TOOLS_ONLY, NEWEST), {NEWEST})
EACH_BACKEND = [
    pytest.param(OURS),
    pytest.param(NEWEST, marks=pytest.mark.apache),
    *(
        pytest.param(each, marks=(pytest.mark.apache, pytest.mark.full))
        for each in BACKENDS
        if each not in (OURS, NEWEST)
    ),
]
"""Clusters for the client's tests: ours, and Apache's of each version."""
