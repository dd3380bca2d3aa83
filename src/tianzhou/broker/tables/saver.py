"""Saves and loads the tables of a broker: JSON in RocketMQ's layout, under `config/` of the store.

    topics.json  subscriptionGroup.json  consumerOffset.json     the current tables
    ....json.bak                                                 the tables before the last save

A complete table exists at any time during a save: the old file is linked as the backup, then
replaced by the new one. An unreadable file is renamed to `.bad` and the backup is loaded; if that
is unreadable, too, the broker does not start: with an empty table it would lose its topics or
deliver everything again.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from tianzhou.config.files import replace_file
from tianzhou.errors import BodyError, StoreCorrupt
from tianzhou.protocol import fastjson
from tianzhou.remoting.scheduler import Steps, at_once, finish

log = logging.getLogger(__name__)

T = TypeVar("T")

_JOINED_TOGETHER = 1024
"""Entries of a table that are joined at a time."""


def encode_table(value: Mapping[str, object]) -> bytes:
    """Encode a table: strict, indented JSON that RocketMQ can read."""
    return at_once(encode_table_steps(value))


def encode_table_steps(value: Mapping[str, object]) -> Steps[bytes]:
    """`encode_table` in steps: a table may have hundreds of thousands of entries."""
    pieces: list[bytes] = []
    for name, member in value.items():
        pieces.append(b"%s\n  %s: " % (b"," if pieces else b"{", msgspec.json.encode(name)))
        if isinstance(member, EncodedBodies):
            yield from _put_entries(pieces, member.texts())
        elif fastjson.is_object(member):
            entries = ((key, encode_text(item)) for key, item in list(member.items()))
            yield from _put_entries(pieces, entries)
        else:
            pieces.append(_indented(encode_text(member), b"  "))
        yield
    if not pieces:
        return b"{}"
    pieces.append(b"\n}")
    return b"".join(pieces)


def encode_text(value: object) -> bytes:
    """Encode a value as in a file."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2)


def _put_entries(pieces: list[bytes], entries: Iterable[tuple[object, bytes]]) -> Steps[None]:
    before, together = b"{", list[bytes]()
    for key, text in entries:
        name = msgspec.json.encode(str(key))
        together.append(b"%s\n    %s: %s" % (before, name, _indented(text, b"    ")))
        before = b","
        if len(together) == _JOINED_TOGETHER:
            # Joining hundreds of thousands of short pieces at the end takes too long.
            pieces.append(b"".join(together))
            together.clear()
        yield
    pieces.append(b"".join(together))
    pieces.append(b"{}" if before == b"{" else b"\n  }")


def _indented(text: bytes, by: bytes) -> bytes:
    return text.replace(b"\n", b"\n" + by)


class EncodedBodies:
    """Encodes the bodies of a table; unchanged ones are cached.

    Fields without a value are left out: RocketMQ must not read them as null.
    """

    def __init__(self, table: Mapping[str, msgspec.Struct]) -> None:
        self._table = table
        self._known: dict[str, tuple[msgspec.Struct, bytes]] = {}

    def texts(self) -> Iterator[tuple[str, bytes]]:
        """Name and text of each, of the table as it is at the first."""
        known, self._known = self._known, {}
        for name, body in dict(self._table).items():
            pair = known.get(name)
            if pair is None or pair[0] is not body:
                pair = (body, msgspec.json.format(encode_body(body), indent=2))
            self._known[name] = pair
            yield name, pair[1]


def encode_body(body: msgspec.Struct) -> msgspec.Raw:
    """Encode a body without its empty fields."""
    return msgspec.Raw(msgspec.json.encode(_without_nones(msgspec.to_builtins(body))))


def _without_nones(value: object) -> object:
    if fastjson.is_object(value):
        return {name: _without_nones(item) for name, item in value.items() if item is not None}
    if fastjson.is_array(value):
        return [_without_nones(item) for item in value]
    return value


def load_table(path: Path, decode: Callable[[dict[str, object]], T]) -> T | None:
    """Load the table in `path`, or else its backup; None if there is neither.

    `decode` raises BodyError for invalid content. Raises StoreCorrupt if there are files and none
    is readable.
    """
    backup = _backup_of(path)
    problems: list[str] = []
    for candidate in (path, backup):
        try:
            data = candidate.read_bytes()
        except FileNotFoundError:
            continue
        try:
            table = decode(_object_in(data))
        except BodyError as e:
            problems.append(f"{candidate}: {e}")
            continue
        if problems:
            _rename_bad(path)
            log.warning("%s; its backup is used", problems[0])
        return table
    if problems:
        raise StoreCorrupt(
            f"{'; '.join(problems)}. Repair or remove these files; without them the table is empty"
        )
    return None


def convert_table(value: object, into: type[T], what: str) -> T:
    """Convert a part of a file. Raises BodyError."""
    try:
        return msgspec.convert(value, into, strict=False)
    except msgspec.ValidationError as e:
        raise BodyError(f"the {what} cannot be read: {e}") from e


def unknown_keys(content: dict[str, object], *known: str) -> dict[str, object]:
    """What other versions have written, to be saved again."""
    return {key: value for key, value in content.items() if key not in known}


def _object_in(data: bytes) -> dict[str, object]:
    if not data.strip(b" \t\r\n\0"):
        raise BodyError("the file is empty")
    value = fastjson.loads(data)
    if not fastjson.is_object(value):
        raise BodyError("the file holds no JSON object")
    return value


def save_table(path: Path, data: bytes) -> None:
    """Replace the table in `path`; the old one becomes the backup. Raises OSError."""
    if path.exists():
        spare = path.with_name(f".{path.name}.{os.getpid()}.bak")
        spare.unlink(missing_ok=True)
        os.link(path, spare)
        spare.replace(_backup_of(path))
    replace_file(path, data)


def _backup_of(path: Path) -> Path:
    return path.with_name(path.name + ".bak")


def _rename_bad(path: Path) -> None:
    try:
        path.replace(path.with_name(path.name + ".bad"))
    except OSError as e:
        log.warning("%s: cannot be renamed to .bad: %s", path, e)


class TableSaver:
    """Saves tables in a thread; pending changes share one save.

    `encoders` encode each file's current content. They run on the event loop, in slices: a change
    meanwhile may be included or not, and has marked the table for the next save.
    """

    def __init__(self, encoders: Mapping[Path, Callable[[], Steps[bytes]]]) -> None:
        self._encoders = encoders
        self._changed: set[Path] = set()
        self._failed: set[Path] = set()
        self._change_count = self._saved_count = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tables")
        self._save_lock = asyncio.Lock()

    def mark(self, path: Path) -> None:
        """A table has changed; the next `save` includes it."""
        self._changed.add(path)
        self._change_count += 1

    async def save(self, *paths: Path) -> bool:
        """Save these tables and all that are marked; returns when they are on disk.

        A table that cannot be written is logged and stays marked; then False is returned.
        """
        for path in paths:
            self.mark(path)
        wanted = self._change_count
        async with self._save_lock:
            # A save that began after the change and ended meanwhile is enough.
            if self._saved_count < wanted:
                await self._save_changed()
        return not self._failed

    async def _save_changed(self) -> None:
        changed, self._changed = self._changed, set()
        self._saved_count = self._change_count
        known = sorted(path for path in changed if path in self._encoders)
        contents = {path: await finish(self._encoders[path]()) for path in known}
        for path, data in contents.items():
            await self._save_one(path, data)

    async def close(self) -> None:
        """Save all tables a last time and end the thread."""
        await self.save(*self._encoders)
        self._thread.shutdown()

    async def _save_one(self, path: Path, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, save_table, path, data)
        except OSError as e:
            self.mark(path)
            if path not in self._failed:
                log.error("%s: cannot be saved, retrying later: %s", path, e)  # noqa: TRY400 - the text says all
            self._failed.add(path)
        else:
            self._failed.discard(path)
