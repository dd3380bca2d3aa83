"""Settings of the nameserver: RocketMQ's keys, defaults and TLS properties."""

from pathlib import Path

import pytest

from tianzhou.config.settings import Given, load, settings_of
from tianzhou.errors import ConfigError
from tianzhou.namesrv.config import IGNORED, NamesrvConfig
from tianzhou.remoting.settings_requests import fixed_keys
from tianzhou.remoting.tls.contexts import ClientCertificates, TlsMode
from tianzhou.remoting.tls.settings import tls_of

# Fields of NamesrvConfig and NettyServerConfig in RocketMQ 5.x, with their defaults.
ROCKETMQ_DEFAULTS = {
    "listenPort": 9876,
    "bindAddress": "0.0.0.0",  # noqa: S104 - compared with, not bound
    "serverChannelMaxIdleTimeSeconds": 120,
    "shutdownWaitTimeSeconds": 30,
    "orderMessageEnable": False,
    "returnOrderTopicConfigToBroker": True,
    "scanNotActiveBrokerInterval": 5000,
    "supportActingMaster": False,
    "enableAllTopicList": True,
    "enableTopicList": True,
    "notifyMinBrokerIdChanged": False,
    "needWaitForService": False,
    "waitSecondsForService": 45,
    "deleteTopicWithBrokerRegistration": False,
    "configBlackList": "configBlackList;configStorePath;kvConfigPath",
    "kvConfigPath": Path.home() / "namesrv" / "kvConfig.json",
    "configStorePath": Path.home() / "namesrv" / "namesrv.properties",
}


def values_by_key(config: NamesrvConfig) -> dict[str, object]:
    return {declared.key: getattr(config, declared.name) for declared in settings_of(NamesrvConfig)}


def loaded(**pairs: str) -> NamesrvConfig:
    return load(NamesrvConfig, [Given(key, text, "test") for key, text in pairs.items()]).config


def test_defaults_are_rocketmqs() -> None:
    values = values_by_key(NamesrvConfig())
    assert {key: values[key] for key in ROCKETMQ_DEFAULTS} == ROCKETMQ_DEFAULTS


def test_every_setting_has_a_meaning_and_a_key_of_its_own() -> None:
    settings = settings_of(NamesrvConfig)
    keys = [key for declared in settings for key in declared.keys]
    assert len(keys) == len(set(keys))
    assert not set(keys) & set(IGNORED)
    assert all(declared.meaning for declared in settings)


def test_tls_properties_of_rocketmq_are_read() -> None:
    pairs = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": "/tls/cert.pem",
        "tls.server.keyPath": "/tls/key.pem",
        "tls.server.keyPassword": "secret",
        "tls.server.trustCertPath": "/tls/ca.pem",
        "tls.server.need.client.auth": "require",
    }
    tls = tls_of(loaded(**pairs))
    assert tls is not None
    assert (tls.mode, tls.certificate, tls.key, tls.key_password) == (
        TlsMode.ENFORCING,
        Path("/tls/cert.pem"),
        Path("/tls/key.pem"),
        "secret",
    )
    assert (tls.trusted, tls.client_certificates) == (
        Path("/tls/ca.pem"),
        ClientCertificates.REQUIRED,
    )


@pytest.mark.parametrize("mode", ["off", "disabled", "permissive"])
def test_without_certificate_the_port_is_plain(mode: str) -> None:
    assert tls_of(loaded(tlsMode=mode)) is None


@pytest.mark.parametrize(
    ("pairs", "missing"),
    [
        ({"tlsMode": "enforcing"}, "tlsMode enforcing needs tlsServerCertPath"),
        ({"tlsServerKeyPath": "/tls/key.pem"}, "tlsServerKeyPath is set"),
    ],
)
def test_incomplete_tls_settings_are_rejected(pairs: dict[str, str], missing: str) -> None:
    with pytest.raises(ConfigError, match=missing):
        tls_of(loaded(**pairs))


def test_keys_that_no_request_may_change() -> None:
    listed = {"configBlackList", "configStorePath", "kvConfigPath"}
    assert fixed_keys(NamesrvConfig().config_black_list, "always") == listed | {"always"}
    assert fixed_keys("listenPort; x;", "always") == {"listenPort", "x", "always"}
