"""Compressed bodies against RocketMQ's compressors, and decompression bombs."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianzhou.errors import BodyError
from tianzhou.protocol import sysflag
from tianzhou.protocol.records import compression
from tianzhou.protocol.records.compression import CompressionType

PLAIN = b"tianzhou tianzhou tianzhou tianzhou " * 5
# PLAIN at level 5 as the compressors of 4.9.7 and 5.5.0 write it.
FROM_JAVA = {
    CompressionType.LZ4: bytes.fromhex(
        "04224d18607073130000009f7469616e7a686f7520090093507a686f752000000000"
    ),
    CompressionType.ZSTD: bytes.fromhex("28b52ffd0058840000487469616e7a686f752001002852e508010000"),
    CompressionType.ZLIB: bytes.fromhex("785e2bc94cccabcac82f5528193a0c0056274769"),
}
kinds = pytest.mark.parametrize("kind", CompressionType)


@kinds
def test_bodies_compressed_by_rocketmq_are_read(kind: CompressionType) -> None:
    assert compression.decompress(FROM_JAVA[kind], kind, len(PLAIN)) == PLAIN


def test_lz4_frames_are_described_as_rocketmqs() -> None:
    # Version 1, independent blocks, no checksums, no size. The largest block may differ.
    packed = compression.compress(PLAIN, CompressionType.LZ4)
    assert packed[:5] == FROM_JAVA[CompressionType.LZ4][:5] == bytes.fromhex("04224d1860")


@kinds
@given(st.binary(max_size=2000), st.integers(1, 9))
def test_a_body_round_trips(kind: CompressionType, body: bytes, level: int) -> None:
    packed = compression.compress(body, kind, level)
    assert compression.decompress(packed, kind, len(body)) == body


@kinds
def test_the_limit_is_exact(kind: CompressionType) -> None:
    packed = compression.compress(PLAIN, kind)
    with pytest.raises(BodyError, match=f"unpacks to more than {len(PLAIN) - 1} bytes"):
        compression.decompress(packed, kind, len(PLAIN) - 1)


@kinds
def test_a_decompression_bomb_uses_no_more_memory_than_the_limit(kind: CompressionType) -> None:
    bomb = compression.compress(bytes(50_000_000), kind)
    assert len(bomb) < 500_000
    limit = 1_000_000
    tracemalloc.start()
    try:
        with pytest.raises(BodyError, match="unpacks to more than 1000000 bytes"):
            compression.decompress(bomb, kind, limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * limit


@kinds
def test_a_truncated_body_is_rejected(kind: CompressionType) -> None:
    packed = FROM_JAVA[kind]
    for length in range(len(packed)):
        with pytest.raises(BodyError, match=kind.name):
            compression.decompress(packed[:length], kind, 10_000)


@kinds
def test_bytes_after_the_end_are_rejected(kind: CompressionType) -> None:
    for behind in (b"\x00", FROM_JAVA[kind]):
        with pytest.raises(BodyError, match="bytes after its end"):
            compression.decompress(FROM_JAVA[kind] + behind, kind, 10_000)


@kinds
@given(st.binary(max_size=60), st.integers(0, 27), st.integers(1, 255))
def test_damaged_bodies_are_rejected_or_read(
    kind: CompressionType, noise: bytes, at: int, bits: int
) -> None:
    damaged = bytearray(FROM_JAVA[kind])
    damaged[at % len(damaged)] ^= bits
    for body in (noise, bytes(damaged), bytes(damaged) + noise):
        try:
            assert len(compression.decompress(body, kind, 10_000)) <= 10_000
        except BodyError:
            continue


def test_a_zstd_frame_with_a_huge_window_is_rejected() -> None:
    # A frame header that announces a window of 2 GiB, then one raw block of one byte.
    frame = bytes.fromhex("28b52ffd") + bytes([0x00, 21 << 3]) + bytes.fromhex("09000041")
    with pytest.raises(BodyError, match="ZSTD"):
        compression.decompress(frame, CompressionType.ZSTD, 1000)


@pytest.mark.parametrize(
    ("sys_flag", "kind"),
    [
        (0, CompressionType.ZLIB),
        (sysflag.COMPRESSED, CompressionType.ZLIB),
        (sysflag.COMPRESSED | sysflag.COMPRESSION_LZ4, CompressionType.LZ4),
        (sysflag.COMPRESSED | sysflag.COMPRESSION_ZSTD, CompressionType.ZSTD),
        (sysflag.COMPRESSED | sysflag.COMPRESSION_ZLIB | 0xF8FE, CompressionType.ZLIB),
    ],
)
def test_the_system_flag_has_the_compression_type(sys_flag: int, kind: CompressionType) -> None:
    assert compression.type_of(sys_flag) is kind
    # getCompressionFlag of Java, with the bit for a compressed body.
    assert compression.flag_of(CompressionType.LZ4) == 256 + 1
    assert compression.flag_of(CompressionType.ZSTD) == 512 + 1
    assert compression.flag_of(CompressionType.ZLIB) == 768 + 1


@pytest.mark.parametrize("number", [4, 5, 6, 7])
def test_an_unknown_compression_type_is_rejected(number: int) -> None:
    with pytest.raises(BodyError, match=f"compression type {number} is unknown"):
        compression.plain_body(PLAIN, sysflag.COMPRESSED | number << 8, 10_000)


def test_only_a_compressed_body_is_decompressed() -> None:
    for kind, packed in FROM_JAVA.items():
        flag = compression.flag_of(kind)
        assert compression.plain_body(packed, flag, 10_000) == PLAIN
        assert compression.plain_body(packed, flag & ~sysflag.COMPRESSED, 10_000) == packed


def test_an_invalid_compression_level_is_rejected() -> None:
    for kind in (CompressionType.ZLIB, CompressionType.ZSTD):
        with pytest.raises(BodyError, match="level 99"):
            compression.compress(PLAIN, kind, 99)


def test_the_transaction_state_is_two_bits_of_the_flag() -> None:
    flag = sysflag.COMPRESSED | sysflag.TRANSACTION_PREPARED
    assert sysflag.transaction_state(flag) == sysflag.TRANSACTION_PREPARED
    rolled_back = sysflag.with_transaction_state(flag, sysflag.TRANSACTION_ROLLBACK)
    assert rolled_back == sysflag.COMPRESSED | sysflag.TRANSACTION_ROLLBACK
    assert sysflag.with_transaction_state(rolled_back, 0) == sysflag.COMPRESSED
