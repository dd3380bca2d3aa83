"""Exporting dead letters as JSON lines or CSV, into the output of the job."""

import csv
import io
import json

import msgspec

from tianzhou.console.jobs.ranges import LetterRange, letters_in
from tianzhou.console.jobs.worker import Running
from tianzhou.console.messages.content import exported
from tianzhou.console.messages.letters import letter_of, origin_of, topic_of
from tianzhou.console.web.responses import safe_cell
from tianzhou.errors import TargetError
from tianzhou.message import StoredMessage

LETTERS_MAX = 100_000
BYTES_MAX = 64 * 1024 * 1024
PART_LETTERS, PART_BYTES = 200, 512 * 1024
"""The output is written in parts of about this size."""
FORMATS = {"jsonl": "JSON lines", "csv": "CSV"}
_COLUMNS = (
    "id", "offset_id", "origin_topic", "origin_id", "tries", "tags", "keys", "broker", "queue",
    "queue_offset", "born_ms", "stored_ms", "properties", "body", "body_base64",
)  # fmt: skip


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """What to export."""

    group: str
    format: str
    ranges: tuple[LetterRange, ...] = ()
    begin_ms: int = 0
    end_ms: int = 0


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Where it continues."""

    range: int = 0
    queue_offset: int = 0
    written_bytes: int = 0


async def run(running: Running) -> None:
    """Export until all is written. Raises JobCancelled, JobLost, TianzhouError."""
    body = msgspec.json.decode(running.body, type=Export)
    position = Position()
    if running.position:
        position = msgspec.json.decode(running.position, type=Position)
    part = io.StringIO()
    if not running.position and body.format == "csv":
        # A spreadsheet reads the file as UTF-8 by this mark.
        part.write("\ufeff")
        csv.writer(part).writerow(_COLUMNS)
    letters = letters_in(
        running.admin, topic_of(body.group), body.ranges, body.begin_ms, body.end_ms,
        position.range, position.queue_offset,
    )  # fmt: skip
    count = 0
    async for number, letter in letters:
        _write(part, letter, body, body.ranges[number].broker)
        running.done += 1
        count += 1
        position = Position(
            range=number, queue_offset=letter.queue_offset + 1, written_bytes=position.written_bytes
        )
        if count % PART_LETTERS == 0 or part.tell() > PART_BYTES:
            position, part = await _store(running, position, part), io.StringIO()
        if running.done >= LETTERS_MAX or position.written_bytes > BYTES_MAX:
            await _store(running, position, part)
            raise TargetError(
                f"the export ends after {running.done:,} letters, at most {LETTERS_MAX:,} letters "
                f"and {BYTES_MAX // 1024 // 1024} MiB are exported at a time; what was exported "
                f"can be downloaded; the next ones are stored from {letter.store_time_ms} ms on"
            )
    running.total = running.done
    await _store(running, position, part)


async def _store(running: Running, position: Position, part: io.StringIO) -> Position:
    content = part.getvalue().encode(errors="replace")
    after = msgspec.structs.replace(position, written_bytes=position.written_bytes + len(content))
    await running.store(after, content)
    return after


def _write(part: io.StringIO, letter: StoredMessage, body: Export, broker: str) -> None:
    data = exported(letter, broker)
    if body.format == "jsonl":
        part.write(json.dumps(data, ensure_ascii=False) + "\n")
        return
    shown = letter_of(letter, broker, None)
    row = data | {
        "origin_topic": origin_of(letter), "origin_id": shown.origin_id, "tries": shown.tries,
        "keys": " ".join(letter.keys),
    }  # fmt: skip
    csv.writer(part).writerow([safe_cell(row.get(name)) for name in _COLUMNS])
