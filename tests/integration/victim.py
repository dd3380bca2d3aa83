"""A consumer in a process of its own, made to be killed in the middle of its work.

    python -m tests.integration.victim NAMESRV GROUP TOPIC [ordered]

It prints a line for every message that it has begun, and one for every message that is done:
"begun QUEUE OFFSET" and "done QUEUE OFFSET"; before these, its client id.
"""

import asyncio
import sys

from tianzhou.client import PushConsumer, ReceivedMessage

_AT_A_TIME = 4


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def main(namesrv: str, group: str, topic: str, *, ordered: bool) -> None:
    consumer = PushConsumer(
        group, namesrv=namesrv, start="first", ordered=ordered, consume_threads=_AT_A_TIME,
        persist_offsets_ms=200, lock_ms=500,
    )  # fmt: skip

    @consumer.handler(topic)
    async def work(message: ReceivedMessage) -> None:
        tell(f"begun {message.queue_id} {message.queue_offset}")
        await asyncio.sleep(0.02)
        tell(f"done {message.queue_id} {message.queue_offset}")

    async with consumer:
        tell(consumer.client_id)
        await consumer.closed()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4], ordered="ordered" in sys.argv[4:]))
