"""The message as plain data: as a program sends it, and as it lies in the store.

What a message means to the wire (property names, ids, record layout) is the business of
`protocol`; here are only the values. Both kinds are frozen; `msgspec.structs.replace` makes a
changed copy.
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
    """1 to 18 choose a delay of the broker's table, 0 means at once."""
    wait_stored: bool = True
    """Whether the broker answers only after flush and replication, where it does these."""
    properties: dict[str, str] = {}


class StoredMessage(msgspec.Struct, frozen=True):
    """One record of the commit log or of a pull reply, every field of it.

    The body is as stored: compressed if `sys_flag` says so, and empty if it was not asked for.
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
    """Where the half message of a transaction lies, 0 outside transactions."""
    body_crc: int
    size_bytes: int
    """Length of the whole record."""

    @property
    def tags(self) -> str | None:
        return self.properties.get("TAGS")

    @property
    def keys(self) -> list[str]:
        return [key for key in self.properties.get("KEYS", "").split(" ") if key]
