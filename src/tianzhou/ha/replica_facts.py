"""What a replica knows durably for automatic failover: one small file in storePathRootDir.

    replicaFacts      2774410034                        CRC-32 of the next line
                      {"group":"9f3c…","id":2,...}      the fields of `ReplicaFacts`, as JSON

    brokerIdentity    CLUSTER#BROKERNAME#2              the id alone, in RocketMQ's form

Both are replaced as a whole and fsynced. The first one decides; the second one is for operators and
for RocketMQ's tools, and is written again if it is missing. A damaged file is refused: a replica
that guessed its identity or its epochs could be elected without messages that were acknowledged.
"""

import logging
import zlib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from tianzhou.config.files import replace_file
from tianzhou.errors import StoreCorrupt
from tianzhou.store.config import FlushDiskType, StoreConfig
from tianzhou.store.files.disk import explained

log = logging.getLogger(__name__)

FILE_NAME = "replicaFacts"
IDENTITY_NAME = "brokerIdentity"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ID_MAX = 2**31 - 1


class FlushMode(StrEnum):
    """What an unclean stop can lose of what a replica has acknowledged."""

    SYNC = "sync"
    """Nothing: it acknowledges what is on its disk."""
    ASYNC = "async"
    """What was in the page cache, if the machine stopped, too."""
    STAGED = "staged"
    """Also what was in the memory of the process (transientStorePoolEnable)."""


def flush_mode(config: StoreConfig) -> FlushMode:
    """The mode of a store with these settings."""
    if config.is_staged:
        return FlushMode.STAGED
    is_sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
    return FlushMode.SYNC if is_sync else FlushMode.ASYNC


class ReplicaFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of it; the defaults are those of a replica that was never in a group."""

    group: str = ""
    """The random id of the group; empty before the replica has joined one."""
    id: int = 0
    """The own id; 0 before there is one."""
    store_id: str = ""
    """The id of the store that this was written for."""
    boot_id: str = ""
    """The machine's boot in which the replica last took part."""
    flush: FlushMode = FlushMode.SYNC
    """That of the last run."""
    followed_epoch: int = 0
    """The largest epoch that this replica led or reported to (R5)."""
    confirm: int = 0
    """The largest confirm offset seen, and not more than was on the own disk then (R9)."""
    cluster_id: str = ""
    """The id of the etcd cluster (R14)."""
    highest_epoch: int = 0
    """The largest epoch seen in the group's state (R14); that of the next field."""
    state_revision: int = 0
    """The largest revision of the group's state in that epoch, by this or another replica (R14)."""
    master: int = 0
    """The master that it followed last, 0 if none: the only one to follow without etcd (R0)."""
    master_addr: str = ""
    """The listen port of that master, host:port."""
    retired: bool = False
    """An operator removed it from the group: it must not come back by a restart."""
    unclean: str = ""
    """Why the store may lack what it has acknowledged; empty once the in-sync set has been left."""


# -- R10 -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a start has found."""

    was_clean: bool
    """The file `abort` did not exist: `MessageStore.report.clean`."""
    boot_id: str
    store_id: str
    flush: FlushMode
    """By the settings of the new run."""


def unclean_reason(facts: ReplicaFacts, start: Start) -> str:
    """Why the store may lack bytes that this replica has acknowledged (R10); empty if it has all.

    A store without a known stop, a failed fsync and a former reason that was not dealt with count,
    too. The caller compares the store id with that of `replicas/ID` as well.
    """
    if facts.unclean:
        return facts.unclean
    if not facts.id:
        return ""  # never in a group: nothing was acknowledged
    if start.store_id != facts.store_id:
        return f"the store is another one: its id is {start.store_id}, not {facts.store_id}"
    if start.was_clean or facts.flush is FlushMode.SYNC:
        return ""
    if facts.flush is FlushMode.STAGED:
        return "the process ended without a stop while messages were in its staging pool"
    if not start.boot_id or start.boot_id != facts.boot_id:
        return (
            "the machine stopped while the broker ran with ASYNC_FLUSH, so the end of the log may "
            "be lost"
        )
    return ""


def of_start(facts: ReplicaFacts, start: Start) -> ReplicaFacts:
    """The facts to save before the new run does anything else.

    The boot id of an unclean replica stays until it has left the in-sync set: see `of_learner`.
    """
    reason = unclean_reason(facts, start)
    if reason:
        return msgspec.structs.replace(facts, unclean=reason, flush=start.flush)
    return msgspec.structs.replace(facts, boot_id=start.boot_id, flush=start.flush)


def of_failed_fsync(facts: ReplicaFacts, why: str) -> ReplicaFacts:
    """The facts to save when an fsync has failed: later ones do not show what was lost."""
    return msgspec.structs.replace(facts, unclean=f"an fsync failed: {why}")


def of_learner(facts: ReplicaFacts, start: Start, log_end: int) -> ReplicaFacts:
    """The facts of an unclean replica that has left the in-sync set, as etcd has answered."""
    return msgspec.structs.replace(
        facts, unclean="", boot_id=start.boot_id, store_id=start.store_id,
        confirm=min(facts.confirm, log_end),
    )  # fmt: skip


def read_boot_id(path: Path = _BOOT_ID) -> str:
    """The id of the machine's present boot; empty where there is none, which counts as another."""
    try:
        return path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


# -- the files -------------------------------------------------------------------------------------


class FactsFile:
    """The facts of a store, and their files."""

    def __init__(self, root: Path, cluster: str, broker_name: str) -> None:
        """Reads the files of a store. Raises StoreError, StoreCorrupt for a damaged file."""
        self.path = root / FILE_NAME
        self._identity_path = root / IDENTITY_NAME
        self._cluster, self._broker_name = cluster, broker_name
        self._failed_fsync = ""
        try:
            self.facts = self._read()
            self.known_id = self._read_identity()
            """The own id, also if only `brokerIdentity` has it; 0 if none has."""
            if self.facts.id and not self.known_id:
                self._save_identity(self.facts.id)
        except OSError as error:
            raise explained(error, f"read {self.path}") from error

    def save(self, facts: ReplicaFacts) -> None:
        """Replaces the facts, durably; nothing is written if they are the same.

        Raises StoreError; then the old facts are in force.
        """
        if self._failed_fsync and not facts.unclean:
            facts = of_failed_fsync(facts, self._failed_fsync)
        if facts == self.facts:
            return
        before = self.facts
        assert facts.followed_epoch >= before.followed_epoch, "the followed epoch never decreases"
        assert facts.highest_epoch >= before.highest_epoch, "the highest epoch never decreases"
        line = msgspec.json.encode(facts)
        try:
            replace_file(self.path, b"%d\n%b\n" % (zlib.crc32(line), line))
            self.facts = facts
            if facts.id and facts.id != self.known_id:
                self._save_identity(facts.id)
        except OSError as error:
            raise explained(error, f"save {self.path}") from error

    def note_failed_fsync(self, why: str) -> None:
        """All facts that are saved from now on say so, though they were collected before."""
        self._failed_fsync = why

    def _read(self) -> ReplicaFacts:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return ReplicaFacts()
        crc, _, line = content.rstrip(b"\n").partition(b"\n")
        try:
            if not (crc.isdigit() and int(crc[:10]) == zlib.crc32(line)):
                raise StoreCorrupt(self._damaged("its checksum is wrong"))
            facts = msgspec.json.decode(line, type=ReplicaFacts)
        except msgspec.MsgspecError as error:
            raise StoreCorrupt(self._damaged(f"its content cannot be read ({error})")) from error
        numbers = (facts.followed_epoch, facts.confirm, facts.highest_epoch, facts.state_revision)
        if min(facts.id, *numbers) < 0:
            raise StoreCorrupt(self._damaged("it has a negative number"))
        return facts

    def _damaged(self, why: str) -> str:
        return (
            f"{self.path} is damaged: {why}; without it this replica does not know its group and "
            "its epochs. Restore the file from a copy of this moment's store, or stop the broker, "
            "move the store directory away and start with an empty one: it is copied from the "
            "master"
        )

    def _read_identity(self) -> int:
        path = self._identity_path
        try:
            content = path.read_text("utf-8", "replace").strip()
        except FileNotFoundError:
            return 0
        cluster, _, rest = content.partition("#")
        name, _, number = rest.partition("#")
        is_number = number.isascii() and number.isdecimal() and len(number) <= 10
        if not is_number or not 0 < int(number) <= _ID_MAX:
            raise StoreCorrupt(
                f"{path} is damaged: {content[:200]!r} is no CLUSTER#BROKERNAME#ID; "
                f"{self._remedy('write it again')}"
            )
        if (cluster, name) != (self._cluster, self._broker_name):
            raise StoreCorrupt(
                f"{path} is that of broker {name!r} in cluster {cluster!r}, but the settings are "
                f"brokerName={self._broker_name} and brokerClusterName={self._cluster}; correct "
                "the settings, or use another storePathRootDir"
            )
        if self.facts.id and int(number) != self.facts.id:
            raise StoreCorrupt(
                f"{path} has the id {number}, but {self.path} has {self.facts.id}; "
                f"{self._remedy('correct it')}"
            )
        return int(number)

    def _remedy(self, doing: str) -> str:
        if self.facts.id:
            return f"remove it, then the next start writes it with the id {self.facts.id}"
        return f"{doing} with the id that this broker has in its group"

    def _save_identity(self, number: int) -> None:
        text = f"{self._cluster}#{self._broker_name}#{number}"
        replace_file(self._identity_path, text.encode())
        self.known_id = number
