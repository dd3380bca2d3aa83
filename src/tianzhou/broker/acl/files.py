"""The files of access control: plain_acl.yml and every .yml in the folder beside it.

    ROCKETMQ_HOME/conf/plain_acl.yml        aclFile
    ROCKETMQ_HOME/conf/acl/*.yml            aclFolder, folders in it included

Rules change only as a whole: a file that cannot be used leaves the rules as they were. Files are
rewritten by requests of administrators; comments in them are lost then, as with RocketMQ.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import yaml

from tianzhou.broker.acl.accounts import FileContent, Rules, make_account, make_rules
from tianzhou.clock import Clock
from tianzhou.config.files import PRIVATE, replace_file
from tianzhou.config.yaml_files import check_names, parse_yaml, read_text
from tianzhou.errors import ConfigError
from tianzhou.protocol.bodies.auth import PlainAccessConfig
from tianzhou.protocol.bodies.topics import DataVersion
from tianzhou.remoting.quota.addresses import parse_pattern

_SUFFIXES = (".yml", ".yaml")
_SIZE_MAX = 16 * 1024 * 1024


class AclFiles:
    """The files, and their content when they were last read."""

    def __init__(self, file: Path, folder: Path, clock: Clock) -> None:
        self._file = file
        self._folder = folder
        self._clock = clock
        self.rules = Rules()
        self.contents: dict[Path, FileContent] = {}
        """By path, the file that is named first."""

    @property
    def file(self) -> Path:
        """The file that new accounts are added to."""
        return self._file

    # -- reading -----------------------------------------------------------------------------------

    def load(self) -> None:
        """Read everything. Raises ConfigError; then the old rules stay.

        A file of the folder may be deleted, which deletes its accounts. Without aclFile, or without
        any file, no account could administrate any more, so that is an error.
        """
        paths = self.paths()
        if (self._file in self.contents and self._file not in paths) or (
            self.contents and not paths
        ):
            raise ConfigError(
                f"{self._file} is missing: restore it, or update an account, which writes it "
                f"again; to remove accounts remove them from the file"
            )
        self._replace_rules({path: read_file(path) for path in paths})

    def _replace_rules(self, contents: dict[Path, FileContent]) -> None:
        self.rules = make_rules((str(path), content) for path, content in contents.items())
        self.contents = contents

    def paths(self) -> list[Path]:
        """The files that exist now."""
        paths = [self._file] if self._file.exists() else []
        if self._folder.is_dir():
            candidates = (path for path in self._folder.rglob("*") if path.suffix in _SUFFIXES)
            paths += sorted(path for path in candidates if path != self._file and path.is_file())
        return paths

    # -- changing ----------------------------------------------------------------------------------

    def put_account(self, given_account: PlainAccessConfig) -> None:
        """Create an account or replace what is given of it. Raises ConfigError, OSError."""
        path = self._path_of(given_account.access_key or "") or self._file

        def change(content: FileContent) -> None:
            accounts = list(content.accounts or ())
            for number, known in enumerate(accounts):
                if known.access_key == given_account.access_key:
                    accounts[number] = _merged(known, given_account)
                    break
            else:
                accounts.append(given_account)
            for account in accounts:
                make_account(account)
            content.accounts = accounts

        self._rewrite(path, change)

    def remove_account(self, access_key: str) -> None:
        """Delete an account. Raises ConfigError, also if there is none, and OSError."""
        path = self._path_of(access_key)
        if path is None:
            raise ConfigError(f"there is no account {access_key}")

        def change(content: FileContent) -> None:
            content.accounts = [
                account for account in content.accounts or () if account.access_key != access_key
            ]

        self._rewrite(path, change)

    def set_white(self, patterns: list[str], path: Path | None) -> None:
        """Replace the global white list of a file. Raises ConfigError, OSError."""
        for pattern in patterns:
            parse_pattern(pattern)
        path = path or self._file
        if path != self._file and path not in self.contents:
            raise ConfigError(f"{path} is none of the files of access control")

        def change(content: FileContent) -> None:
            content.global_white_remote_addresses = patterns

        self._rewrite(path, change)

    def _path_of(self, access_key: str) -> Path | None:
        for path, content in self.contents.items():
            if path != self._file and not path.exists():
                continue  # the file was deleted, which deletes its accounts
            if any(account.access_key == access_key for account in content.accounts or ()):
                return path
        return None

    def _rewrite(self, path: Path, change: Callable[[FileContent], None]) -> None:
        """Change one file, if all files together are valid afterwards.

        A file that was deleted is written again with its last content.
        """
        contents = {each: read_file(each) for each in self.paths()}
        if self._file in self.contents and self._file not in contents:
            contents = {self._file: self.contents[self._file], **contents}
        content = msgspec.structs.replace(contents.get(path, FileContent()))
        change(content)
        versions = content.data_version or [DataVersion()]
        content.data_version = [
            DataVersion(
                state_version=versions[0].state_version,
                timestamp=self._clock(),
                counter=(versions[0].counter or 0) + 1,
            )
        ]
        contents[path] = content
        make_rules((str(each), content_of) for each, content_of in contents.items())
        # It holds secrets: a new file is private, an existing one retains its owner and mode.
        replace_file(path, write_text(content).encode(), new_mode=PRIVATE)
        self._replace_rules(contents)


def _merged(known: PlainAccessConfig, given_account: PlainAccessConfig) -> PlainAccessConfig:
    given = {
        name: value
        for name in given_account.__struct_fields__
        if (value := getattr(given_account, name)) not in (None, "")
    }
    return msgspec.structs.replace(known, **given)


def read_file(path: Path) -> FileContent:
    """Raises ConfigError that names the file and, where it can, the line."""
    text = read_text(path, _SIZE_MAX)
    try:
        data = parse_yaml(text)
        if data is None:
            return FileContent()
        _check_keys(data)
        return msgspec.convert(_without_nulls(data), FileContent, strict=False)
    except (msgspec.ValidationError, ConfigError) as e:
        raise ConfigError(f"{path}: {e}") from e


def _check_keys(data: object) -> None:
    check_names(data, FileContent, "the file")
    accounts = cast("Mapping[str, object]", data).get("accounts")
    for account in cast("list[object]", accounts) if isinstance(accounts, list) else ():
        check_names(account, PlainAccessConfig, "an account")


_NULLS = ("", "~", "null", "Null", "NULL")
"""Null in YAML, as text: `globalWhiteRemoteAddresses:` without a value is valid."""


def _without_nulls(data: object) -> object:
    """The data without keys whose value is null."""
    if isinstance(data, list):
        return [_without_nulls(each) for each in cast("list[object]", data)]
    if not isinstance(data, dict):
        return data
    pairs = cast("dict[str, object]", data).items()
    return {name: _without_nulls(value) for name, value in pairs if value not in _NULLS}


def write_text(content: FileContent) -> str:
    """The file in RocketMQ's layout."""
    data = cast("dict[str, Any]", msgspec.to_builtins(content))
    for account in data.get("accounts") or ():
        for name in [name for name, value in account.items() if value is None]:
            del account[name]
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
