"""The offsets of a consumer: in memory, and where they are saved.

A group that shares its queues keeps its offsets at the brokers (`RemoteOffsets`). A broadcasting
consumer has every queue to itself and keeps them in a file (`LocalOffsets`), in the place and form
of the Java client, which reads ours and we its:

    ~/.rocketmq_offsets/CLIENT_ID/GROUP/offsets.json      and .bak, what was there before
    {"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:42}}

An update is in memory until `persist`, which happens every five seconds, when a queue is given up
and when the consumer stops; what was done in between is done again after a crash.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tianzhou.client.queues import Queue, from_wire
from tianzhou.errors import BodyError, ConfigError, RequestError, TianzhouError
from tianzhou.protocol.bodies import decode, encode
from tianzhou.protocol.bodies.offsets import ResetOffsetBody, ResetOffsetBodyForC

log = logging.getLogger(__name__)

FILE_NAME = "offsets.json"
_PATIENCE_S = 3.0
"""After this time without a response the next commit is sent all the same."""

T = TypeVar("T")


class Offsets:
    """The offsets in memory."""

    def __init__(self) -> None:
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


class OffsetStore(Protocol):
    """What both kinds of store can do."""

    def read(self, queue: Queue) -> int | None: ...
    def update(self, queue: Queue, queue_offset: int, *, may_fall: bool = False) -> None: ...
    def forget(self, queue: Queue) -> None: ...
    def of_topic(self, topic: str) -> dict[Queue, int]: ...

    async def load(self, queue: Queue) -> int | None:
        """The saved offset, None if there is none. Raises TianzhouError on failure."""
        ...

    async def persist(self, queues: Iterable[Queue]) -> None:
        """Save the offsets of these queues; a failure is logged and retried next time."""
        ...


# -- at the brokers --------------------------------------------------------------------------------


class SerializedCommits:
    """Requests that save offsets, one after the other in each queue.

    Apache's brokers serve requests in many threads: of two that are under way at the same time, the
    older may count last and set a group back. So the next waits for the answer to the one before,
    also if its caller was cancelled because the consumer stops.
    """

    def __init__(self) -> None:
        self._under_way: dict[Queue, asyncio.Future[Any]] = {}

    def is_free(self, queue: Queue) -> bool:
        """Whether no request of this queue is under way."""
        return queue not in self._under_way

    async def run(self, queue: Queue, send: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Send a request when it is its turn, and give its answer."""
        deadline = asyncio.get_running_loop().time() + _PATIENCE_S
        while earlier := self._under_way.get(queue):
            left_s = deadline - asyncio.get_running_loop().time()
            _, unanswered = await asyncio.wait((earlier,), timeout=left_s)
            if unanswered:
                break
        request = asyncio.ensure_future(send())
        self._under_way[queue] = request
        request.add_done_callback(lambda done: self._answered(queue, done))
        return await asyncio.shield(request)

    def _answered(self, queue: Queue, request: asyncio.Future[Any]) -> None:
        if self._under_way.get(queue) is request:
            del self._under_way[queue]
        if not request.cancelled():
            request.exception()  # marked as retrieved; its caller may have been cancelled


class RemoteOffsets(Offsets):
    """Offsets of a group, kept by the broker of each queue."""

    def __init__(
        self,
        group: str,
        query: Callable[[Queue], Awaitable[int | None]],
        commit: Callable[[Queue, int], Awaitable[None]],
    ) -> None:
        super().__init__()
        self._group = group
        self._query = query
        self._commit = commit

    async def load(self, queue: Queue) -> int | None:
        queue_offset = await self._query(queue)
        if queue_offset is not None:
            self.update(queue, queue_offset, may_fall=True)
        return queue_offset

    async def persist(self, queues: Iterable[Queue]) -> None:
        wanted = {each: self._table[each] for each in queues if each in self._table}
        await commit_all(self._persist_one, wanted)

    async def _persist_one(self, queue: Queue, queue_offset: int) -> None:
        try:
            await self._commit(queue, queue_offset)
        except (TianzhouError, RequestError) as error:
            log.warning("group %s, queue %s: offset not saved: %s", self._group, queue, error)


async def commit_all(
    commit: Callable[[Queue, int], Awaitable[None]], wanted: Mapping[Queue, int]
) -> None:
    """Commit many offsets: one of each topic at each broker first, then all others at once.

    Brokers of Apache's make a group's table of a topic with the first commit that finds none, and
    do not look whether another thread is just making it: of first commits that arrive together
    all but one can be lost, though each was answered with success.
    """
    first = {(queue.topic, queue.broker_name): queue for queue in reversed(tuple(wanted))}
    alone = set(first.values())
    await asyncio.gather(*(commit(queue, wanted[queue]) for queue in alone))
    await asyncio.gather(*(commit(queue, at) for queue, at in wanted.items() if queue not in alone))


# -- in a file -------------------------------------------------------------------------------------


def default_directory() -> Path:
    """Where the Java client keeps its files."""
    return Path.home() / ".rocketmq_offsets"


class LocalOffsets(Offsets):
    """Offsets of one broadcasting consumer, kept in a file."""

    def __init__(self, directory: Path, client_id: str, group: str) -> None:
        super().__init__()
        self._group = group
        self._path = directory / client_id / group / FILE_NAME
        self._kept: dict[Queue, int] | None = None

    @property
    def path(self) -> Path:
        return self._path

    async def load(self, queue: Queue) -> int | None:
        """Raises ConfigError if neither the file nor its backup can be read."""
        if self._kept is None:
            self._kept = await asyncio.to_thread(self._read_files)
        queue_offset = self._kept.get(queue)
        if queue_offset is not None:
            self.update(queue, queue_offset, may_fall=True)
        return queue_offset

    async def persist(self, queues: Iterable[Queue]) -> None:
        kept = dict(self._kept or {})
        kept.update({each: self._table[each] for each in queues if each in self._table})
        if kept == self._kept:
            return
        try:
            await asyncio.to_thread(self._write_files, kept)
        except OSError as error:
            log.warning("group %s: offsets not saved in %s: %s", self._group, self._path, error)
        else:
            self._kept = kept

    def _write_files(self, kept: dict[Queue, int]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        body = ResetOffsetBody(offsets={queue.to_wire(): at for queue, at in kept.items()})
        if self._path.exists():
            _replace(self._backup_path, self._path.read_bytes())
        _replace(self._path, encode(body))

    @property
    def _backup_path(self) -> Path:
        return self._path.with_name(f"{FILE_NAME}.bak")

    def _read_files(self) -> dict[Queue, int]:
        troubles: list[str] = []
        for path in (self._path, self._backup_path):
            try:
                return _read_table(path)
            except FileNotFoundError:
                continue
            except (BodyError, OSError) as error:
                log.warning("group %s: %s cannot be read: %s", self._group, path, error)
                troubles.append(f"{path}: {error}")
        if troubles:
            raise ConfigError(
                f"group {self._group}: its offsets cannot be read, so it is not known where to go "
                f"on; mend or remove {' and '.join(troubles)}"
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
    """The directory that was asked for, or the usual one."""
    return Path(setting) if setting else default_directory()


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
