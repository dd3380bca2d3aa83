"""Sending a part of a file with a head before it: `sendmsg` of mapped memory, or `sendfile`.

Parts of a file in the page cache go over a loopback connection to a process that drops them, as
responses to pulls and frames to slaves do. Only the CPU time of the sender counts. `sendfile` needs
a call of its own for the head, which waits for the body (MSG_MORE).

`python -m bench.bench_sendfile` prints one line per size.
"""

import mmap
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial

FILE_BYTES = 256 << 20
HEAD = bytes(100)
SIZES = (8 << 10, 32 << 10, 256 << 10, 1 << 20)
ROUNDS = 5
_RECEIVED_MAX = 1 << 20

Send = Callable[[int, int], None]


def _drop(listening: socket.socket, connections: int) -> None:
    buffer = bytearray(_RECEIVED_MAX)
    for _ in range(connections):
        sock, _ = listening.accept()
        with sock:
            while sock.recv_into(buffer):
                pass


def _by_sendmsg(sock: socket.socket, mapped: memoryview, start: int, size_bytes: int) -> None:
    unsent = [memoryview(HEAD), mapped[start : start + size_bytes]]
    while unsent:
        count = sock.sendmsg(unsent)
        while unsent and count >= len(unsent[0]):
            count -= len(unsent.pop(0))
        if unsent:
            unsent[0] = unsent[0][count:]


def _by_sendfile(sock: socket.socket, file: int, start: int, size_bytes: int) -> None:
    sock.sendall(HEAD, socket.MSG_MORE)
    stop = start + size_bytes
    while start < stop:
        start += os.sendfile(sock.fileno(), file, start, stop - start)


def _us_per_kib(send: Send, size_bytes: int) -> float:
    """CPU time of one pass over the file."""
    began_s = time.process_time()
    for start in range(0, FILE_BYTES, size_bytes):
        send(start, size_bytes)
    return (time.process_time() - began_s) * 1e6 / (FILE_BYTES / 1024)


def figures() -> dict[int, tuple[float, float]]:
    """Median CPU in us per KiB by size of the part: `sendmsg`, `sendfile`."""
    found: dict[int, tuple[float, float]] = {}
    with tempfile.TemporaryFile() as file, socket.create_server(("127.0.0.1", 0)) as listening:
        file.write(os.urandom(FILE_BYTES))
        file.flush()
        # fork: the child has the listening socket.
        receiver = multiprocessing.get_context("fork").Process(
            target=_drop, args=(listening, 1), daemon=True
        )
        receiver.start()
        with (
            mmap.mmap(file.fileno(), FILE_BYTES, prot=mmap.PROT_READ) as mapped,
            memoryview(mapped) as view,
            socket.create_connection(listening.getsockname()) as sock,
        ):
            ways = (partial(_by_sendmsg, sock, view), partial(_by_sendfile, sock, file.fileno()))
            for send in ways:
                _us_per_kib(send, SIZES[-1])  # maps every page
            for size_bytes in SIZES:
                rounds = [[_us_per_kib(send, size_bytes) for send in ways] for _ in range(ROUNDS)]
                by_sendmsg, by_sendfile = map(statistics.median, zip(*rounds, strict=True))
                found[size_bytes] = (by_sendmsg, by_sendfile)
        receiver.join()
    return found


def main() -> None:
    print("KiB    sendmsg us/KiB    sendfile us/KiB")
    for size_bytes, (by_sendmsg, by_sendfile) in figures().items():
        print(f"{size_bytes >> 10:>4} {by_sendmsg:>16.3f} {by_sendfile:>18.3f}")


if __name__ == "__main__":
    main()
