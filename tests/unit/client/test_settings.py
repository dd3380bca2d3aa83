"""Settings: names, values, and which clients share a hub."""

import dataclasses
from typing import Any, get_type_hints

import pytest

from tianzhou.client.identity import new_client_id
from tianzhou.client.sending.settings import ProducerOptions, ProducerSettings
from tianzhou.client.settings import ClientOptions, ClientSettings, settings_from
from tianzhou.errors import ConfigError
from tianzhou.protocol.acl import Credentials
from tianzhou.protocol.command import HeaderEncoding
from tianzhou.remoting.tls.contexts import Tls


@pytest.mark.parametrize(
    ("settings", "options"), [(ClientSettings, ClientOptions), (ProducerSettings, ProducerOptions)]
)
def test_options_are_the_fields(settings: type, options: type) -> None:
    fields = {field.name for field in dataclasses.fields(settings)}
    assert set(get_type_hints(options)) == fields


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="send_time_out_ms, did you mean send_timeout_ms"):
        settings_from(ProducerSettings, None, {"send_time_out_ms": 1})
    with pytest.raises(ConfigError, match=r"unknown setting qqq; known are .*namesrv"):
        settings_from(ClientSettings, None, {"qqq": 1})


def test_base_then_options() -> None:
    base = ClientSettings(namesrv="a:1", namespace="n")
    made = settings_from(ProducerSettings, base, {"namespace": "m", "retry_count": 5})
    assert (made.namesrv, made.namespace, made.retry_count) == ("a:1", "m", 5)
    assert settings_from(ProducerSettings, made, {}).retry_count == 5


def test_shared_part() -> None:
    one = ProducerSettings(namesrv="a:1", retry_count=1).shared()
    other = ProducerSettings(namesrv="a:1", retry_count=2).shared()
    assert one == other == ClientSettings(namesrv="a:1")
    assert hash(one) == hash(other)


@pytest.mark.parametrize(
    "options",
    [
        {"trace": True, "trace_topic": "T"}, {"telemetry": True}, {"persist_offsets_ms": 1},
        {"unpacked_bytes_max": 1}, {"namespace": "n"}, {"vip_channel": True}, {"unit_mode": True},
        {"namesrv": "b:2;a:1;b:2"},
    ],
)  # fmt: skip
def test_client_only_settings_share_connections(
    options: dict[str, Any],
) -> None:
    base = ClientSettings(namesrv="a:1;b:2")
    assert settings_from(ClientSettings, base, options).shared() == base.shared()


@pytest.mark.parametrize(
    "options",
    [
        {"namesrv": "a:1"}, {"instance_name": "i"}, {"client_ip": "1.2.3.4"}, {"unit_name": "u"},
        {"credentials": Credentials("a", "b")}, {"tls": Tls()}, {"heartbeat_ms": 1},
        {"header_encoding": HeaderEncoding.ROCKETMQ}, {"api_timeout_ms": 1},
    ],
)  # fmt: skip
def test_other_clusters_names_and_transports_get_own_connections(
    options: dict[str, Any],
) -> None:
    base = ClientSettings(namesrv="a:1;b:2")
    assert settings_from(ClientSettings, base, options).shared() != base.shared()


@pytest.mark.parametrize(
    "options",
    [
        {"heartbeat_ms": 0}, {"send_timeout_ms": 0}, {"retry_count": -1}, {"linger_ms": -0.1},
        {"in_flight_count": 0}, {"batch_bytes": 0},
    ],
)  # fmt: skip
def test_invalid_values(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        settings_from(ProducerSettings, None, options)


def test_nameservers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(ConfigError, match="NAMESRV_ADDR"):
        ClientSettings().namesrv_addresses()
    monkeypatch.setenv("NAMESRV_ADDR", "x:1;y:2")
    assert ClientSettings().namesrv_addresses() == ("x:1", "y:2")
    assert ClientSettings(namesrv="z:3; z:3;[::1]:4").namesrv_addresses() == ("z:3", "[::1]:4")
    with pytest.raises(ConfigError, match=r"namesrv: .*port"):
        ClientSettings(namesrv="no port")
    monkeypatch.setenv("NAMESRV_ADDR", "x:y")
    with pytest.raises(ConfigError, match="environment NAMESRV_ADDR"):
        ClientSettings().namesrv_addresses()


def test_client_ids() -> None:
    default = ClientSettings(client_ip="10.0.0.1")
    assert new_client_id(default).startswith("10.0.0.1@")
    assert new_client_id(default) != new_client_id(default)
    named = ClientSettings(client_ip="10.0.0.1", instance_name="i", unit_name="u")
    assert new_client_id(named) == "10.0.0.1@i@u"


def test_secrets_are_not_shown() -> None:
    assert "hidden" not in repr(ClientSettings(credentials=Credentials("a", "hidden")))
