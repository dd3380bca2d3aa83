"""Access control files: content, changes, and errors of invalid ones."""
# ruff: noqa: S105, S106 - the secrets are made up here

import stat
from pathlib import Path

import pytest

from tianzhou.broker.acl.accounts import Permission, parse_permission
from tianzhou.broker.acl.files import AclFiles
from tianzhou.errors import ConfigError
from tianzhou.protocol.bodies.auth import PlainAccessConfig

STOCK = """
# comment
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*
accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      - groupA=DENY
  - accessKey: rocketmq2
    secretKey: 12345678
    admin: true
"""


def files(folder: Path, text: str | None = STOCK) -> AclFiles:
    if text is not None:
        (folder / "plain_acl.yml").write_text(text)
    return AclFiles(folder / "plain_acl.yml", folder / "acl", lambda: 1234)


def test_a_stock_file_gives_its_accounts(tmp_path: Path) -> None:
    found = files(tmp_path)
    found.load()
    plain, admin = found.rules.accounts["RocketMQ"], found.rules.accounts["rocketmq2"]
    assert plain.secret_key == "12345678"
    assert [plain.of_topic(name) for name in ("topicA", "topicB", "topicC", "other")] == [
        Permission.DENY,
        Permission.PUB | Permission.SUB,
        Permission.SUB,
        Permission.DENY,
    ]
    assert plain.of_group("groupA") == Permission.DENY
    assert plain.of_group("other") == Permission.SUB
    assert admin.is_admin
    assert admin.of_topic("other") == admin.of_group("other") == Permission.PUB | Permission.SUB
    assert len(found.rules.white) == 2
    assert "12345678" not in repr(plain)


def test_a_folder_of_files_adds_accounts_and_no_key_is_there_twice(tmp_path: Path) -> None:
    (tmp_path / "acl" / "deep").mkdir(parents=True)
    more = "accounts:\n  - accessKey: moreMore\n    secretKey: 87654321\n"
    (tmp_path / "acl" / "deep" / "more.yaml").write_text(more)
    found = files(tmp_path)
    found.load()
    assert set(found.rules.accounts) == {"RocketMQ", "rocketmq2", "moreMore"}
    before = found.rules
    (tmp_path / "acl" / "again.yml").write_text(more)
    with pytest.raises(ConfigError, match="moreMore is defined twice"):
        found.load()
    assert found.rules is before


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("accounts: [", "no YAML"),
        ("- a\n- b\n", "must be a map"),
        ("accounts: 5\n", "accounts"),
        ("acounts: []\n", "meant was perhaps accounts"),
        ("accounts:\n  - accessKey: RocketMQ\n    secretKey: 12345678\n    topicPerm: [a=PUB]\n",
         "meant was perhaps topicPerms"),
        ("accounts:\n  - accessKey: short\n    secretKey: 12345678\n", "at least 7"),
        ("accounts:\n  - accessKey: RocketMQ\n    secretKey: 1\n", "secretKey has 1 characters"),
        ("accounts:\n  - accessKey: RocketMQ\n    secretKey: 12345678\n    topicPerms: [a]\n",
         "write name=permission"),
        ("accounts:\n  - accessKey: RocketMQ\n    secretKey: 12345678\n    topicPerms: [a=ALL]\n",
         "'ALL' is no permission"),
        ("accounts:\n  - accessKey: RocketMQ\n    secretKey: 12345678\n    admin: perhaps\n",
         "bool"),
        ("globalWhiteRemoteAddresses: [everywhere]\n", "is no address"),
    ],
)  # fmt: skip
def test_invalid_file_is_refused_with_its_name_and_the_rules_stay(
    tmp_path: Path, text: str, why: str
) -> None:
    found = files(tmp_path)
    found.load()
    before = found.rules
    (tmp_path / "plain_acl.yml").write_text(text)
    with pytest.raises(ConfigError, match=why) as caught:
        found.load()
    assert "plain_acl.yml" in str(caught.value)
    assert "12345678" not in str(caught.value)
    assert found.rules is before


@pytest.mark.parametrize("null", ["", "~", "null"])
def test_empty_keys_are_ignored(tmp_path: Path, null: str) -> None:
    text = "globalWhiteRemoteAddresses: -\ndataVersion: -\naccounts:\n" + "\n".join(
        [
            "  - accessKey: RocketMQ", "    secretKey: 12345678", "    whiteRemoteAddress: -",
            "    admin: -", "    defaultTopicPerm: -", "    defaultGroupPerm: -",
            "    topicPerms: -", "    groupPerms: -",
        ]
    )  # fmt: skip
    found = files(tmp_path, text.replace(" -\n", f" {null}\n").removesuffix(" -") + f" {null}\n")
    found.load()
    account = found.rules.accounts["RocketMQ"]
    assert not account.is_admin
    assert account.of_topic("any") == account.of_group("any") == Permission.DENY
    for empty in (f"accounts: {null}\n", f"globalWhiteRemoteAddresses: {null}\naccounts: []\n", ""):
        (tmp_path / "plain_acl.yml").write_text(empty)
        found.load()
        assert not found.rules.accounts


def test_accounts_survive_deletion_of_their_file_and_the_next_change_rewrites_it(
    tmp_path: Path,
) -> None:
    found = files(tmp_path)
    found.load()
    path = tmp_path / "plain_acl.yml"
    path.unlink()
    with pytest.raises(ConfigError, match=r"plain_acl\.yml is missing: restore it"):
        found.load()
    assert set(found.rules.accounts) == {"RocketMQ", "rocketmq2"}
    found.put_account(PlainAccessConfig(access_key="newcomer", secret_key="secret-1"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = files(tmp_path, None)
    again.load()
    assert set(again.rules.accounts) == {"RocketMQ", "rocketmq2", "newcomer"}


def test_removed_file_of_the_folder_removes_its_accounts(tmp_path: Path) -> None:
    (tmp_path / "acl").mkdir()
    more = tmp_path / "acl" / "more.yml"
    more.write_text("accounts:\n  - accessKey: moreMore\n    secretKey: 87654321\n")
    found = files(tmp_path)
    found.load()
    more.unlink()
    found.put_account(PlainAccessConfig(access_key="moreMore", secret_key="another-1"))
    assert not more.exists(), "a file that was removed is not written again"
    assert found.rules.accounts["moreMore"].secret_key == "another-1"


def test_a_change_that_contradicts_another_file_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "acl").mkdir()
    found = files(tmp_path)
    found.load()
    text = (tmp_path / "plain_acl.yml").read_text()
    (tmp_path / "acl" / "new.yml").write_text(
        "accounts:\n  - accessKey: newcomer\n    secretKey: 87654321\n"
    )
    with pytest.raises(ConfigError, match="newcomer is defined twice"):
        found.put_account(PlainAccessConfig(access_key="newcomer", secret_key="secret-1"))
    assert (tmp_path / "plain_acl.yml").read_text() == text


def test_an_account_is_created_changed_and_deleted_in_the_file(tmp_path: Path) -> None:
    found = files(tmp_path)
    found.load()
    new = PlainAccessConfig(access_key="newcomer", secret_key="secret-1", topic_perms=["a=PUB"])
    found.put_account(new)
    found.put_account(PlainAccessConfig(access_key="newcomer", group_perms=["g=SUB"]))
    again = files(tmp_path, None)
    again.load()
    account = again.rules.accounts["newcomer"]
    assert (account.of_topic("a"), account.of_group("g")) == (Permission.PUB, Permission.SUB)
    assert account.secret_key == "secret-1"
    assert set(again.rules.accounts) == {"RocketMQ", "rocketmq2", "newcomer"}
    versions = again.contents[tmp_path / "plain_acl.yml"].data_version or []
    assert [(version.counter, version.timestamp) for version in versions] == [(2, 1234)]
    again.remove_account("newcomer")
    with pytest.raises(ConfigError, match="there is no account newcomer"):
        again.remove_account("newcomer")
    again.set_white(["10.0.0.*"], None)
    assert len(again.rules.white) == 1
    with pytest.raises(ConfigError, match="none of the files"):
        again.set_white([], tmp_path / "elsewhere.yml")


def test_invalid_change_changes_nothing(tmp_path: Path) -> None:
    found = files(tmp_path)
    found.load()
    text = (tmp_path / "plain_acl.yml").read_text()
    with pytest.raises(ConfigError, match="no permission"):
        found.put_account(PlainAccessConfig(access_key="RocketMQ", topic_perms=["a=EVERYTHING"]))
    with pytest.raises(ConfigError, match="secretKey has 0"):
        found.put_account(PlainAccessConfig(access_key="newcomer"))
    with pytest.raises(ConfigError, match="is no address"):
        found.set_white(["nowhere"], None)
    assert (tmp_path / "plain_acl.yml").read_text() == text


def test_the_files_are_those_that_exist_now(tmp_path: Path) -> None:
    found = files(tmp_path, None)
    assert found.paths() == []
    (tmp_path / "plain_acl.yml").write_text(STOCK)
    assert found.paths() == [tmp_path / "plain_acl.yml"]
    (tmp_path / "acl").mkdir()
    (tmp_path / "acl" / "x.yml").write_text("accounts: []")
    assert found.paths() == [tmp_path / "plain_acl.yml", tmp_path / "acl" / "x.yml"]
    (tmp_path / "acl" / "x.yml").unlink()
    assert found.paths() == [tmp_path / "plain_acl.yml"]


def test_permissions_are_read_as_rocketmq_writes_them() -> None:
    assert parse_permission("SUB|PUB") == parse_permission(" PUB | SUB ")
    assert parse_permission(None) == parse_permission("") == Permission.DENY
