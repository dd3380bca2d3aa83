"""Small YAML files: what is no ordinary file is refused at once, and names are checked."""

import os
from pathlib import Path

import msgspec
import pytest

from tianzhou.broker.acl.files import AclFiles
from tianzhou.broker.quota.rules import read_rules
from tianzhou.config.yaml_files import check_names, parse_yaml, read_text
from tianzhou.errors import ConfigError
from tianzhou.remoting.tls.contexts import Tls


class Shop(msgspec.Struct):
    open: str = ""
    owner: str = ""


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "plain_acl.yml"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match=r"plain_acl\.yml: is no ordinary file"):
        read_text(pipe, 100)
    with pytest.raises(ConfigError, match="is no ordinary file"):
        AclFiles(pipe, tmp_path / "acl", lambda: 0).load()
    with pytest.raises(ConfigError, match="is no ordinary file"):
        read_rules(pipe)
    with pytest.raises(ConfigError, match="is no ordinary file"):
        Tls(certificate=pipe).server_context()
    with pytest.raises(ConfigError, match="is no ordinary file"):
        Tls(certificate=tmp_path / "absent.pem", key=pipe).server_context()
    with pytest.raises(ConfigError, match="is no ordinary file"):
        Tls(trusted=pipe).client_context()


def test_a_pipe_among_the_files_of_a_folder_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("accounts: [{accessKey: someone, secretKey: '12345678'}]")
    os.mkfifo(tmp_path / "b.yml")
    files = AclFiles(tmp_path / "plain_acl.yml", tmp_path, lambda: 0)
    files.load()
    assert list(files.contents) == [tmp_path / "a.yml"]


def test_a_folder_a_huge_file_and_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is no ordinary file|cannot be read"):
        read_text(tmp_path, 100)
    path = tmp_path / "some.yml"
    path.write_bytes(b"x" * 101)
    with pytest.raises(ConfigError, match="larger than 100 bytes"):
        read_text(path, 100)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_text(path, 100)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_text(tmp_path / "absent.yml", 100)


def test_values_are_text_and_nonsense_is_told() -> None:
    assert parse_yaml("open: 09\nowner: yes\n") == {"open": "09", "owner": "yes"}
    assert parse_yaml("") is None
    with pytest.raises(ConfigError, match="no YAML"):
        parse_yaml("a: [")
    with pytest.raises(ConfigError, match="no YAML"):
        parse_yaml("[" * 100_000)


def test_a_name_that_nobody_knows_is_an_error() -> None:
    check_names({"open": "9"}, Shop, "the shop")
    with pytest.raises(ConfigError, match=r"unknown name 'onwer', meant was .*owner"):
        check_names({"onwer": "x"}, Shop, "the shop")
    with pytest.raises(ConfigError, match="must be a map"):
        check_names(["open"], Shop, "the shop")
