"""Types of the compiled kernel (the crate in `kernel/`), for checking where it is not installed.

Every function answers None when it declines; `tianzhou.protocol.kernel` then asks the pure twin.
"""

from tianzhou.protocol.pure import Buffer, Header
from tianzhou.protocol.pure_record import RecordFields

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
def body_crc(buffer: Buffer, /) -> int | None: ...
def provoke_panic() -> None: ...
