"""Messages as plain values: one to send, and one stored.

Property names, ids and record layout are in `protocol`. Both structs are frozen;
`msgspec.structs.replace` returns a changed copy.
"""

import msgspec

Host = tuple[str, int]
"""An address and a port. IPv6 is in the short form of RFC 5952, without brackets."""


class Message(msgspec.Struct, frozen=True):
    """A message to send. `properties` holds what the program adds, not tags, keys and delay."""

    topic: str
    body: bytes
    tags: str | None = None
    keys: tuple[str, ...] = ()
    flag: int = 0
    delay_level: int = 0
    """1 to 18 is a delay of the broker's table, 0 no delay."""
    wait_stored: bool = True
    """Whether the broker responds only after flush and replication, if these are configured."""
    properties: dict[str, str] = {}


class StoredMessage(msgspec.Struct, frozen=True):
    """All fields of a record of the commit log or of a pull response.

    The body is as stored: compressed if `sys_flag` has that bit; empty if it was not requested.
    """

    topic: str
    body: bytes
    properties: dict[str, str]
    queue_id: int
    queue_offset: int
    log_offset: int
    flag: int
    sys_flag: int
    born_time_ms: int
    born_host: Host
    store_time_ms: int
    store_host: Host
    reconsume_count: int
    prepared_log_offset: int
    """Log offset of the half message of a transaction; 0 outside of transactions."""
    body_crc: int
    size_bytes: int
    """Length of the whole record."""

    @property
    def tags(self) -> str | None:
        return self.properties.get("TAGS")

    @property
    def keys(self) -> list[str]:
        return [key for key in self.properties.get("KEYS", "").split(" ") if key]
