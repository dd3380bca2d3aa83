"""An echo server in a process of its own, whose memory a test can measure.

Prints its port; ends when its standard input does. Usage: python -m ... LOOP, one of `LOOPS`.
"""

import asyncio
import sys

from tests.support.remoting import LOOPS, echo
from tianzhou.remoting.server import Server


async def main() -> None:
    """Serve until the parent closes our standard input."""
    server = Server(echo)
    _, port = await server.listen("127.0.0.1", 0)
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    await server.close(drain_s=0)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=LOOPS[sys.argv[1]]) as runner:
        runner.run(main())
