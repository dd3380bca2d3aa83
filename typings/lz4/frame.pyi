"""Types of the part of `lz4.frame` that is used here."""

BLOCKSIZE_MAX4MB: int

def compress(
    data: bytes, *, block_size: int = ..., block_linked: bool = ..., store_size: bool = ...
) -> bytes: ...

class LZ4FrameDecompressor:
    eof: bool
    needs_input: bool
    unused_data: bytes | None
    def decompress(self, data: bytes, max_length: int = ...) -> bytes: ...
