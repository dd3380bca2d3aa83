"""The frames on the HA port, in both protocols. All numbers are big-endian and signed.

Default HA (RocketMQ 4.9, and 5.x without controller):

    slave to master    8   end of the slave's log
    master to slave   12   log offset of the body, its size in bytes; then the body
                           size 0: heartbeat, the log offset is where the next body will begin

Between brokers of Tianzhou the slave first says hello to the master's listen port (`hello.py`), and
gets a token. Then, on the HA port, with the frames of RocketMQ's AutoSwitch HA:

    slave to master   20   "TZHA" and the token (16), once
    slave to master   12   state 2 (4), end of the slave's log: what it acknowledges (8)
    master to slave   36   state 2 (4), size of the body (4), its log offset (8), its epoch (4),
                           log offset at which the epoch begins (8), confirm offset (8); the body
                           size 0: heartbeat

A body is part of one log file, and may begin and end anywhere in it, within records too.

Where masters are elected, state 16 in place of 2 asks for a planned switch, and agrees to one:

    slave to master   12   state 16, its report: the slave asks the master to hand over to it
    master to slave   36   state 16, no body: the slave may take over from the epoch of this head

State 17 announces topics and groups that have changed. The announcement comes before all bytes that
are stored after the change, so a slave that has a message knows its topic:

    master to slave   36   state 17, a body that is not of the log: lines of JSON (`tables.py`); the
                           log offset is where the next body will begin
"""

import struct
from typing import Final, NamedTuple

OPENING: Final = b"TZHA"
"""Never sent to a broker that has not answered our hello: Apache's takes it for a log offset."""
TOKEN_BYTES: Final = 16
OPENING_BYTES: Final = len(OPENING) + TOKEN_BYTES

TRANSFER_STATE: Final = 2
HANDOVER_STATE: Final = 16
"""RocketMQ's states are 0 to 4."""
CHANGES_STATE: Final = 17

DEFAULT_REPORT = struct.Struct(">q")
DEFAULT_HEAD = struct.Struct(">qi")
REPORT = struct.Struct(">iq")
HEAD = struct.Struct(">iiqiqq")

DEFAULT_BODY_BYTES_MAX: Final = 32 * 1024
"""RocketMQ's slaves have a buffer of 4 MiB; their masters send so much at a time."""
BODY_BYTES_MAX: Final = 1024 * 1024
BODY_BYTES_ACCEPTED: Final = 4 * 1024 * 1024
"""A slave closes a connection that announces a larger body."""
CHANGES_BYTES_MAX: Final = 64 * 1024
"""In one frame; slaves accept no more."""


class Head(NamedTuple):
    """The head of a frame from the master; without an epoch in default HA."""

    log_offset: int
    body_bytes: int
    epoch: int = 0
    epoch_start: int = 0
    confirm_offset: int = -1


def encode_head(head: Head, state: int = TRANSFER_STATE) -> bytes:
    return HEAD.pack(
        state, head.body_bytes, head.log_offset, head.epoch, head.epoch_start,
        head.confirm_offset,
    )  # fmt: skip


def encode_default_head(log_offset: int, body_bytes: int) -> bytes:
    return DEFAULT_HEAD.pack(log_offset, body_bytes)


def encode_report(log_offset: int, state: int = TRANSFER_STATE) -> bytes:
    return REPORT.pack(state, log_offset)


def encode_default_report(log_offset: int) -> bytes:
    return DEFAULT_REPORT.pack(log_offset)


def encode_opening(token: bytes) -> bytes:
    assert len(token) == TOKEN_BYTES
    return OPENING + token
