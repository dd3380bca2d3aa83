"""The system flag of a message: compression, transaction state, and the form of its two addresses.

bits 0-1   compressed, several tags
bits 2-3   transaction: none, prepared, commit, rollback
bits 4-5   born host and store host are IPv6
bits 6-7   body is a batch to unwrap, body is an inner batch (5.x)
bits 8-10  kind of compression, see `compression`
"""

COMPRESSED = 1 << 0
MULTI_TAGS = 1 << 1

TRANSACTION_NONE = 0
TRANSACTION_PREPARED = 1 << 2
TRANSACTION_COMMIT = 2 << 2
TRANSACTION_ROLLBACK = 3 << 2
TRANSACTION_MASK = 3 << 2

BORN_HOST_V6 = 1 << 4
STORE_HOST_V6 = 1 << 5

NEED_UNWRAP = 1 << 6
INNER_BATCH = 1 << 7

COMPRESSION_LZ4 = 1 << 8
COMPRESSION_ZSTD = 2 << 8
COMPRESSION_ZLIB = 3 << 8
COMPRESSION_MASK = 7 << 8

PLAIN = COMPRESSED | MULTI_TAGS | BORN_HOST_V6 | STORE_HOST_V6 | COMPRESSION_ZLIB
"""What an ordinary message may have; the two bits of ZLIB are those of all kinds of compression."""


def transaction_state(sys_flag: int) -> int:
    """One of the four TRANSACTION values."""
    return sys_flag & TRANSACTION_MASK


def with_transaction_state(sys_flag: int, state: int) -> int:
    """The flag with its transaction state replaced."""
    return sys_flag & ~TRANSACTION_MASK | state
