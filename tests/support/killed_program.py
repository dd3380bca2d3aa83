"""A consumer in a process of its own, made to be killed in the middle of its work.

    python -m tests.support.killed_program NAMESRV GROUP TOPIC [ordered] [account=KEY/SECRET]

It prints a line for every message that it has begun, and one for every message that is done:
"begun QUEUE OFFSET" and "done QUEUE OFFSET"; before these, its client id.
"""

import asyncio
import sys

from tianzhou.client import Credentials, PushConsumer, ReceivedMessage

_AT_A_TIME = 4


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def credentials_in(arguments: list[str]) -> Credentials | None:
    for argument in arguments:
        if argument.startswith("account="):
            access_key, _, secret_key = argument.removeprefix("account=").partition("/")
            return Credentials(access_key, secret_key)
    return None


async def main(namesrv: str, group: str, topic: str, *more: str) -> None:
    consumer = PushConsumer(
        group, namesrv=namesrv, start="first", ordered="ordered" in more,
        credentials=credentials_in([*more]), consume_threads=_AT_A_TIME, persist_offsets_ms=200,
        lock_ms=500,
    )  # fmt: skip

    @consumer.handler(topic)
    async def work(message: ReceivedMessage) -> None:
        tell(f"begun {message.queue_id} {message.queue_offset}")
        await asyncio.sleep(0.02)
        tell(f"done {message.queue_id} {message.queue_offset}")

    async with consumer:
        tell(consumer.client_id)
        await consumer.wait_closed()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
