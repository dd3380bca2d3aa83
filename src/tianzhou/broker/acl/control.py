"""Access control of one broker: its files, the check of requests, and reloading changed files."""

import logging
from collections.abc import Mapping
from pathlib import Path

from tianzhou.broker.acl.files import AclFiles
from tianzhou.broker.acl.guard import DenialReason, Guard
from tianzhou.broker.acl.needs import TopicAt
from tianzhou.broker.acl.rights import Rights
from tianzhou.clock import Clock
from tianzhou.errors import ConfigError

log = logging.getLogger(__name__)

RELOAD_PERIOD_S = 0.25
"""Period of `reload`, so that a change takes effect within half a second."""


class AccessControl:
    """Checks requests by files that may change at any time."""

    def __init__(
        self, file: Path, folder: Path, topic_at: TopicAt, clock: Clock, rights: Rights
    ) -> None:
        """Raises ConfigError if the files cannot be used."""
        self.files = AclFiles(file, folder, clock)
        self._state = self.files.state()
        if not self._state:
            raise ConfigError(
                f"aclEnable=true, but neither {file} nor a file in {folder} exists: "
                "create one with the first accounts"
            )
        self.files.load()
        self._guard = Guard(lambda: self.files.rules, topic_at, rights)
        self.check = self._guard.check
        self.may_publish = self._guard.may_publish
        self.may_consume = self._guard.may_consume
        self.refused: Mapping[DenialReason, int] = self._guard.refused
        """Refused requests, by what they lacked."""

    def reload(self) -> None:
        """Load changed files; an invalid one leaves the rules as they are."""
        state = self.files.state()
        if state == self._state:
            return
        self._state = state
        try:
            self.files.load()
        except ConfigError as e:
            text = "access control: the last good rules stay in force: %s"
            log.error(text, e)  # noqa: TRY400 - the text names file and mistake; a trace adds nothing
        else:
            log.info("access control: %d accounts in force", len(self.files.rules.accounts))
