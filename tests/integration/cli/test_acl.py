"""`tianzhou acl` on a cluster with access control."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command_line import Cli

from tianzhou.testing import Cluster

ACCOUNTS = """
accounts:
  - accessKey: administrator
    secretKey: admin-secret
    admin: true
"""
SIGNED = ("--access-key", "administrator", "--secret-key", "admin-secret")


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    monkeypatch.setenv("TIANZHOU_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "160")
    file = tmp_path / "conf" / "plain_acl.yml"
    file.parent.mkdir()
    file.write_text(ACCOUNTS)
    with Cluster(aclEnable="true", rocketmqHome=tmp_path) as cluster:
        yield Cli(cluster.namesrv_address)


def test_missing_account_error_names_the_options(cli: Cli) -> None:
    told = cli.refused("broker", "config", "broker-0")
    assert "--access-key and --secret-key" in told


def test_account_is_created_listed_changed_and_deleted(cli: Cli) -> None:
    assert len(cli("acl", "versions", *SIGNED, "--json").json) == 1
    rights = ("--topic", "orders=PUB|SUB", "--group", "billing=SUB", "--default-topic", "DENY")
    more = ("--default-group", "SUB", "--white-address", "10.0.0.7", "--no-admin")
    words = ("acl", "put", "billing", "--secret", "billing-secret", *rights, *more, *SIGNED)
    assert "would put account billing" in cli(*words, "--dry-run").out
    assert "done on 1 broker" in cli(*words, "--yes").out
    accounts = cli("acl", "list", *SIGNED, "--json").json["broker-0"]["accounts"]
    (found,) = [each for each in accounts if each["account"] == "billing"]
    assert found == {
        "account": "billing", "admin": False, "white_address": "10.0.0.7",
        "default_topic": "DENY", "default_group": "SUB", "topics": ["orders=PUB|SUB"],
        "groups": ["billing=SUB"],
    }  # fmt: skip
    shown = cli("acl", "list", *SIGNED).out
    assert "billing-secret" not in shown
    assert "orders=PUB|SUB" in shown
    cli("acl", "delete", "billing", *SIGNED, "--yes")
    assert "billing" not in cli("acl", "list", *SIGNED).out


def test_white_list_is_set(cli: Cli) -> None:
    cli("acl", "white-list", "10.10.1.*", *SIGNED, "--yes")
    assert "needs no account from: 10.10.1.*" in cli("acl", "list", *SIGNED).out


def test_admin_flag_is_unchanged_unless_given(cli: Cli) -> None:
    put = ("acl", "put", "operations", *SIGNED, "--yes")

    def admin() -> bool:
        told = cli("acl", "list", *SIGNED, "--broker", "broker-0", "--json").json["broker-0"]
        (found,) = [each for each in told["accounts"] if each["account"] == "operations"]
        return bool(found["admin"])

    cli(*put, "--secret", "operations-secret", "--admin", "--cluster", "DefaultCluster")
    assert admin()
    cli(*put, "--white-address", "10.0.0.8", "--broker", "broker-0")
    assert admin(), "what is not named stays as it is"
    cli(*put, "--no-admin")
    assert not admin()


def test_broker_option_and_dry_run(cli: Cli, tmp_path: Path) -> None:
    before = cli("acl", "list", *SIGNED, "--json").json
    rows = [
        ("acl", "list"), ("acl", "versions"), ("acl", "put", "newcomer", "--yes"),
        ("acl", "delete", "administrator", "--yes"), ("acl", "white-list", "10.0.0.1", "--yes"),
    ]  # fmt: skip
    for words in rows:
        assert "Elsewhere" in cli.refused(*words, *SIGNED, "--cluster", "Elsewhere")
        assert "nowhere" in cli.refused(*words, *SIGNED, "--broker", "nowhere")
    named = (*SIGNED, "--cluster", "DefaultCluster", "--broker", "broker-0")
    for words in (("acl", "delete", "administrator"), ("acl", "white-list", "10.0.0.1")):
        assert "nothing was changed" in cli(*words, *named, "--dry-run").out
    assert cli("acl", "list", *named, "--json").json == before
    assert len(cli("acl", "versions", *named, "--json").json) == 1
    file = tmp_path / "conf" / "plain_acl.yml"
    other = cli("acl", "white-list", "10.0.0.1", *named, "--file", "/none.yml", "--yes", code=1)
    assert "none of the files" in other.err
    cli("acl", "white-list", "10.0.0.1", *named, "--file", str(file), "--yes")
    assert "10.0.0.1" in file.read_text()


def test_requests_are_signed_with_the_account_of_the_context(cli: Cli) -> None:
    add = ["context", "add", "guarded", "-n", cli.namesrv, *SIGNED, "--use"]
    from tests.support.command_line import run_words

    assert run_words(add).code == 0
    assert run_words(["acl", "versions"]).code == 0
