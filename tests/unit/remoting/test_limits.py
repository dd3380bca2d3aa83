"""Limits: defaults and invalid values."""

import dataclasses

import pytest

from tianzhou.errors import ConfigError
from tianzhou.remoting.limits import Limits


def test_the_defaults_are_rocketmqs_where_it_has_one() -> None:
    limits = Limits()
    assert limits.frame_bytes == 16 * 1024 * 1024  # com.rocketmq.remoting.frameMaxLength
    assert limits.idle_ms == 120_000  # serverChannelMaxIdleTimeSeconds
    assert limits.connect_ms == 3_000  # connectTimeoutMillis
    assert limits.requests_pending == 65_535  # clientAsyncSemaphoreValue
    assert limits.backlog == 1_024  # com.rocketmq.remoting.socket.backlog


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Limits)])
def test_zero_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"limit {name} is 0"):
        dataclasses.replace(Limits(), **{name: 0})


def test_water_marks_must_be_in_order() -> None:
    with pytest.raises(ConfigError, match="unsent_low_bytes"):
        Limits(unsent_high_bytes=10, unsent_low_bytes=11)
