"""Access control of one broker: its files, the check of requests, and reloading changed files."""

from collections.abc import Mapping
from pathlib import Path

from tianzhou.broker.acl.files import AclFiles
from tianzhou.broker.acl.guard import DenialReason, Guard
from tianzhou.broker.acl.needs import TopicAt
from tianzhou.broker.acl.rights import Rights
from tianzhou.clock import Clock
from tianzhou.config.watched_files import WatchedFiles
from tianzhou.errors import ConfigError


class AccessControl:
    """Checks requests by files that may change at any time."""

    def __init__(
        self, file: Path, folder: Path, topic_at: TopicAt, clock: Clock, rights: Rights
    ) -> None:
        """Raises ConfigError if the files cannot be used."""
        self.files = AclFiles(file, folder, clock)
        watched = WatchedFiles(
            self.files.paths, self._reload, "access control: the last good rules stay in force"
        )
        if not self.files.paths():
            raise ConfigError(
                f"aclEnable=true, but neither {file} nor a file in {folder} exists: "
                "create one with the first accounts"
            )
        self.files.load()
        self._guard = Guard(lambda: self.files.rules, topic_at, rights)
        self.poll = watched.poll
        """Loads changed files; an invalid one leaves the rules as they are."""
        self.check = self._guard.check
        self.may_publish = self._guard.may_publish
        self.may_consume = self._guard.may_consume
        self.refused: Mapping[DenialReason, int] = self._guard.refused
        """Refused requests, by what they lacked."""

    def _reload(self) -> str:
        self.files.load()
        return f"access control: {len(self.files.rules.accounts)} accounts in force"
