"""Types of the compiled kernel (the crate in `kernel/`), for checking where it is not installed.

Functions return None for input that they decline; `tianzhou.protocol.kernel` then calls the
pure-Python version.
"""

from collections.abc import Callable
from typing import Any

from tianzhou.protocol.pure.frames import Buffer, Header
from tianzhou.protocol.pure.record import RecordFields
from tianzhou.protocol.pure.walk import Walk

CONTRACT: int

def split_frames(
    buffer: Buffer, limit_bytes: int, /
) -> tuple[list[tuple[int, int]], int] | None: ...
def decode_header(frame: Buffer, /) -> Header | None: ...
def encode_frame(
    code: int,
    language: int,
    version: int,
    opaque: int,
    flag: int,
    remark: str | None,
    ext_fields: dict[str, str] | None,
    encoding: int,
    body: Buffer,
    /,
) -> bytes | None: ...
def decode_record(
    buffer: Buffer, start: int, check_crc: bool, read_body: bool, /
) -> RecordFields | None: ...
def decode_records(
    buffer: Buffer, check_crc: bool, read_body: bool, /
) -> list[RecordFields] | None: ...
def encode_record(
    topic: str,
    body: Buffer,
    properties_text: str,
    queue_id: int,
    queue_offset: int,
    log_offset: int,
    flag: int,
    sys_flag: int,
    born_time_ms: int,
    born_host: bytes,
    store_time_ms: int,
    store_host: bytes,
    reconsume_count: int,
    prepared_log_offset: int,
    /,
) -> bytes | None: ...
def walk_records(
    buffer: Buffer,
    first: int,
    start: int,
    stop: int,
    queues_from: int,
    index_from: int,
    keys_max: int,
    delay_levels_ms: tuple[int, ...],
    check_crc: bool,
    torn: bool,
    /,
) -> Walk | None: ...
def put_index_items(
    file: memoryview, slot_count: int, number: int, begin_time_ms: int, items: bytes, /
) -> int | None: ...

class Feed:
    """The fast path: see `kernel/src/feed/mod.rs` and, for the duties of the caller,
    `broker/requests/fast_path.py`."""

    def __init__(self) -> None: ...
    def configure(
        self,
        *,
        frame_max: int,
        body_max: int,
        batch_max: int,
        batch_keys_max: int,
        index_on: bool,
        waits: bool,
        store_host: bytes,
        id_prefix: str,
        cluster: str,
        special_names: list[str],
        region: str,
        trace_on: bool,
        version: int,
        pull_on: bool,
        lite_pull_on: bool,
        pull_count: int,
        read_count: int,
        read_bytes: int,
        memory_bytes: int,
        checked_from: int,
    ) -> None: ...
    def set_hot_bytes(self, hot_bytes: int, /) -> None: ...
    def set_confirmed(self, log_offset: int, /) -> None: ...
    def set_max_offset(self, max_offset: Callable[[Any], int], /) -> None: ...
    def put_topic(
        self, name: str, queue_count: int, read_count: int, multi_tag: bool, /
    ) -> None: ...
    def grant_pulls(
        self,
        topic: str,
        group: str,
        version: int | None,
        codes: list[int] | None,
        brokers: tuple[int, int] = ...,
        /,
    ) -> None: ...
    def revoke_pulls(self, topic: str, group: str, /) -> None: ...
    def revoke_all_pulls(self) -> None: ...
    def grant_queue_file(
        self,
        topic: str,
        queue_id: int,
        owner: object,
        memory: memoryview,
        first: int,
        stop: int,
        low: int,
        /,
    ) -> None: ...
    def grant_log_file(self, memory: memoryview, first: int, /) -> None: ...
    def revoke_files(self) -> None: ...
    def drop_topic(self, name: str, /) -> None: ...
    def drain_stored(self) -> list[tuple[str, int, int, int, int]]: ...
    def drain_delivered(self) -> list[tuple[str, str, int, tuple[int, int, int], int]]: ...
    def note_pull(self, topic: str, group: str, queue_id: int, next_offset: int, /) -> None: ...
    def grant_log(self, memory: memoryview, first: int, position: int, /) -> None: ...
    def grant_stage(self, memory: memoryview, /) -> None: ...
    def grant_index(
        self, memory: memoryview, slot_count: int, item_max: int, allocated_max: int, /
    ) -> None: ...
    def grant_queue(
        self,
        topic: str,
        queue_id: int,
        owner: object,
        memory: memoryview,
        first: int,
        next_offset: int,
        limit: int,
        /,
    ) -> bool: ...
    def revoke_memory(self) -> None: ...
    def revoke_queue(self, topic: str, queue_id: int, /) -> None: ...
    def revoke_queues(self) -> None: ...
    def feed(
        self, buffer: Buffer, at: int, born_host: bytes, now_ms: int, budget: int, socket: int, /
    ) -> tuple[int, int, bytes, int, list[tuple[str, str, int, int]] | None, int]: ...
    def end_batch(self) -> tuple[Any, ...] | None: ...

def decode_columns(
    buffer: Buffer, starts: bytes | None, names: list[str], check_crc: bool, /
) -> tuple[int, list[Any]] | None: ...
def encode_rows(
    parts: tuple[Any, ...], numbers: bytes, ids: bytes, /
) -> tuple[bytes, bytes] | None: ...
def body_crc(buffer: Buffer, /) -> int | None: ...
def provoke_panic() -> None: ...
