"""The list of harmless settings: every key exists, nothing dangerous is on it."""

import re

import pytest

from tianzhou.admin.changes.harmless_settings import (
    BROKER_SETTINGS,
    NAMESERVER_SETTINGS,
    HarmlessSetting,
    check_settings,
)
from tianzhou.broker.config import BrokerConfig
from tianzhou.config.settings import format_value, settings_by_key
from tianzhou.errors import TargetError
from tianzhou.namesrv.config import NamesrvConfig

DANGEROUS = re.compile(
    r"path|home|dir|file(?!ReservedTime)|^acl|log|command|filterServer|namesrv|addr|name|ip\d|Port$"
    r"|host|tls|password|account|credential|blacklist|role|etcd|quota",
    re.IGNORECASE,
)


@pytest.mark.parametrize("key", [each.key for each in (*BROKER_SETTINGS, *NAMESERVER_SETTINGS)])
def test_nothing_on_the_list_names_a_path_an_address_or_an_account(key: str) -> None:
    assert DANGEROUS.search(key) is None


@pytest.mark.parametrize(
    ("settings", "kind"), [(BROKER_SETTINGS, BrokerConfig), (NAMESERVER_SETTINGS, NamesrvConfig)]
)
def test_every_setting_exists_and_its_default_is_accepted(
    settings: tuple[HarmlessSetting, ...], kind: type[BrokerConfig] | type[NamesrvConfig]
) -> None:
    declared = settings_by_key(kind)
    default = kind()
    for each in settings:
        value = getattr(default, declared[each.key].name)
        assert each.problem_of(format_value(value)) == "", each.key


@pytest.mark.parametrize(
    "key",
    [
        "rocketmqHome", "filterServerNums", "brokerConfigPath", "configStorePath", "kvConfigPath",
        "storePathRootDir", "aclFile", "aclFolder", "logFile", "logLevel", "haRoleCommand",
        "haFenceCommand", "namesrvAddr", "configBlackList", "quotaFile", "tlsServerKeyPath",
        "brokerIP1", "listenPort", "maxmessagesize", "maxMessageSize ", "maxMessageSize\nlogFile",
        "",
    ],
)  # fmt: skip
def test_other_settings_are_refused(key: str) -> None:
    for settings in (BROKER_SETTINGS, NAMESERVER_SETTINGS):
        with pytest.raises(TargetError, match="not on the list of harmless settings"):
            check_settings({key: "true"}, settings)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("maxMessageSize", "-1"), ("maxMessageSize", "99999999999"), ("maxMessageSize", "4M"),
        ("maxMessageSize", "4096\nlogFile=/tmp/x"), ("maxMessageSize", "٤٠٩٦"),
        ("brokerPermission", "0"), ("brokerPermission", "7"), ("deleteWhen", "24"),
        ("deleteWhen", ""), ("deleteWhen", "4;"), ("autoCreateTopicEnable", "yes"),
        ("fileReservedTime", "0"),
    ],
)  # fmt: skip
def test_other_values_are_refused(key: str, value: str) -> None:
    with pytest.raises(TargetError):
        check_settings({key: value}, BROKER_SETTINGS)


def test_several_settings_are_accepted_together() -> None:
    chosen = check_settings({"maxMessageSize": "4096", "deleteWhen": "04;16"}, BROKER_SETTINGS)
    assert list(chosen) == ["maxMessageSize", "deleteWhen"]
