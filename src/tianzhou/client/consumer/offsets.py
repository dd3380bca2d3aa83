"""The offsets of a consumer: in memory, and where they are saved.

The offsets of a group that shares its queues are saved by the brokers (`RemoteOffsets`). A
broadcasting consumer has all queues to itself and saves its offsets in a file (`LocalOffsets`),
with the path and format of the Java client, so each can read the file of the other:

    ~/.rocketmq_offsets/CLIENT_ID/GROUP/offsets.json      and .bak, the previous version
    {"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:42}}

An update is in memory until `persist`, which happens every five seconds, when a queue is given up
and when the consumer stops; after a crash, messages since the last `persist` are repeated.
"""

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tianzhou.client.queues import Queue, from_wire
from tianzhou.errors import BodyError, ConfigError, RequestError, TianzhouError
from tianzhou.protocol.bodies import decode, encode
from tianzhou.protocol.bodies.offsets import ResetOffsetBody, ResetOffsetBodyForC

log = logging.getLogger(__name__)

FILE_NAME = "offsets.json"
_PATIENCE_S = 3.0
"""After this time without a response the next commit is sent all the same."""

T = TypeVar("T")


class OffsetStore(ABC):
    """The offsets in memory, and where they are saved."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._table: dict[Queue, int] = {}

    def read(self, queue: Queue) -> int | None:
        """The offset in memory."""
        return self._table.get(queue)

    def update(self, queue: Queue, queue_offset: int, *, may_fall: bool = False) -> None:
        """Everything below `queue_offset` is done; it only rises unless it may fall."""
        if may_fall or queue_offset > self._table.get(queue, -1):
            self._table[queue] = queue_offset

    def forget(self, queue: Queue) -> None:
        """The queue was released."""
        self._table.pop(queue, None)

    def of_topic(self, topic: str) -> dict[Queue, int]:
        """All offsets in memory of a topic; of all topics if it is empty."""
        return {each: at for each, at in self._table.items() if topic in ("", each.topic)}

    def _of(self, queues: Iterable[Queue]) -> dict[Queue, int]:
        return {each: self._table[each] for each in queues if each in self._table}

    async def load(self, queue: Queue) -> int | None:
        """The saved offset, None if there is none. Raises TianzhouError on failure."""
        queue_offset = await self._load(queue)
        if queue_offset is not None:
            self.update(queue, queue_offset, may_fall=True)
        return queue_offset

    @abstractmethod
    async def _load(self, queue: Queue) -> int | None: ...

    @abstractmethod
    async def persist(self, queues: Iterable[Queue]) -> None:
        """Save the offsets of these queues; a failure is logged and retried next time."""


# -- at the brokers --------------------------------------------------------------------------------


class SerializedCommits:
    """Requests that save offsets, one at a time in each queue.

    Apache's brokers serve requests in many threads: of two concurrent commits the older may be
    applied last and set the group back. So each waits for the response to the one before, also if
    the caller of that was cancelled because the consumer stops.
    """

    def __init__(self) -> None:
        self._pending: dict[Queue, asyncio.Future[Any]] = {}

    def is_free(self, queue: Queue) -> bool:
        """Whether no request of this queue is pending."""
        return queue not in self._pending

    async def run(self, queue: Queue, send: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Send a request after the pending one; returns its response."""
        deadline = asyncio.get_running_loop().time() + _PATIENCE_S
        while earlier := self._pending.get(queue):
            left_s = deadline - asyncio.get_running_loop().time()
            _, unanswered = await asyncio.wait((earlier,), timeout=left_s)
            if unanswered:
                break
        request = asyncio.ensure_future(send())
        self._pending[queue] = request
        request.add_done_callback(lambda done: self._answered(queue, done))
        return await asyncio.shield(request)

    def _answered(self, queue: Queue, request: asyncio.Future[Any]) -> None:
        if self._pending.get(queue) is request:
            del self._pending[queue]
        if not request.cancelled():
            request.exception()  # marked as retrieved; its caller may have been cancelled


class RemoteOffsets(OffsetStore):
    """Offsets of a group, saved by the broker of each queue."""

    def __init__(
        self,
        group: str,
        query: Callable[[Queue], Awaitable[int | None]],
        commit: Callable[[Queue, int], Awaitable[None]],
    ) -> None:
        super().__init__(group)
        self._query = query
        self._commit = commit

    async def _load(self, queue: Queue) -> int | None:
        return await self._query(queue)

    async def persist(self, queues: Iterable[Queue]) -> None:
        await commit_all(self._persist_one, self._of(queues))

    async def _persist_one(self, queue: Queue, queue_offset: int) -> None:
        try:
            await self._commit(queue, queue_offset)
        except (TianzhouError, RequestError) as error:
            log.warning("group %s, queue %s: offset not saved: %s", self._group, queue, error)


async def commit_all(
    commit: Callable[[Queue, int], Awaitable[None]], wanted: Mapping[Queue, int]
) -> None:
    """Commit many offsets: one of each topic at each broker first, then all others concurrently.

    A broker of Apache's creates the table of a group and topic with the first commit, without
    checking whether another thread does the same: of first commits that arrive together all but one
    can be lost, although each response says success.
    """
    first = {(queue.topic, queue.broker_name): queue for queue in reversed(tuple(wanted))}
    alone = set(first.values())
    await asyncio.gather(*(commit(queue, wanted[queue]) for queue in alone))
    await asyncio.gather(*(commit(queue, at) for queue, at in wanted.items() if queue not in alone))


# -- in a file -------------------------------------------------------------------------------------


class LocalOffsets(OffsetStore):
    """Offsets of one broadcasting consumer, saved in a file."""

    def __init__(self, directory: Path, client_id: str, group: str) -> None:
        super().__init__(group)
        self.path = directory / client_id / group / FILE_NAME
        self._backup_path = self.path.with_name(f"{FILE_NAME}.bak")
        self._saved: dict[Queue, int] | None = None

    async def _load(self, queue: Queue) -> int | None:
        """Raises ConfigError if neither the file nor its backup can be read."""
        if self._saved is None:
            self._saved = await asyncio.to_thread(self._read_files)
        return self._saved.get(queue)

    async def persist(self, queues: Iterable[Queue]) -> None:
        offsets = (self._saved or {}) | self._of(queues)
        if offsets == self._saved:
            return
        try:
            await asyncio.to_thread(self._write_files, offsets)
        except OSError as error:
            log.warning("group %s: offsets not saved in %s: %s", self._group, self.path, error)
        else:
            self._saved = offsets

    def _write_files(self, offsets: dict[Queue, int]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        body = ResetOffsetBody(offsets={queue.to_wire(): at for queue, at in offsets.items()})
        if self.path.exists():
            _replace(self._backup_path, self.path.read_bytes())
        _replace(self.path, encode(body))

    def _read_files(self) -> dict[Queue, int]:
        failures: list[str] = []
        for path in (self.path, self._backup_path):
            try:
                return _read_table(path)
            except FileNotFoundError:
                continue
            except (BodyError, OSError) as error:
                log.warning("group %s: %s cannot be read: %s", self._group, path, error)
                failures.append(f"{path}: {error}")
        if failures:
            raise ConfigError(
                f"group {self._group}: the saved offsets cannot be read, so the start offsets are "
                f"unknown; repair or remove {' and '.join(failures)}"
            )
        return {}


def _replace(path: Path, data: bytes) -> None:
    # Not `config.files.replace_file`, which is for Unix; clients run on Windows, too.
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _read_table(path: Path) -> dict[Queue, int]:
    data = path.read_bytes()
    if not data.strip():
        raise BodyError("the file is empty")
    return {from_wire(queue): at for queue, at in decode(ResetOffsetBody, data).offsets.items()}


def directory_from(setting: str | os.PathLike[str] | None) -> Path:
    """The directory of the setting, or that of the Java client."""
    return Path(setting) if setting else Path.home() / ".rocketmq_offsets"


def reset_offsets(body: bytes) -> dict[Queue, int]:
    """The offsets of a RESET_CONSUMER_CLIENT_OFFSET request, in either of its two forms."""
    try:
        table = decode(ResetOffsetBody, body).offsets
        return {from_wire(queue): at for queue, at in table.items()}
    except BodyError:
        rows = decode(ResetOffsetBodyForC, body).offsets or []
        return {
            Queue(row.topic or "", row.broker_name or "", row.queue_id): row.queue_offset
            for row in rows
        }
