"""A program whose workers send with a client of the main process.

    python -m tests.support.worker_pool NAMESRV TOPIC fork|spawn

The producer is created when the module is loaded, as preloading servers do: forked workers inherit
it while it runs; spawned ones load the module and start a new one. It prints how many messages were
sent, and whether any that a worker should have sent came from the main process.
"""

import multiprocessing
import os
import sys

from tianzhou.client.sync import Producer

WORKERS = 3
JOBS = 30

namesrv, topic, method = sys.argv[1:4]
producer = Producer("pool", namesrv=namesrv)


def send(number: int) -> tuple[str, int]:
    return producer.send(topic, f"{number}").msg_id, os.getpid()


def start_spawned() -> None:
    if method == "spawn":
        producer.start()


def main() -> None:
    with producer:
        first, own_pid = producer.send(topic, b"before"), os.getpid()
        context = multiprocessing.get_context(method)
        with context.Pool(WORKERS, initializer=start_spawned) as pool:
            sent = pool.map(send, range(JOBS), chunksize=1)
            pool.close()
            pool.join()
        last = producer.send(topic, b"after")
    ids = {msg_id for msg_id, _ in sent} | {first.msg_id, last.msg_id}
    pids = {pid for _, pid in sent}
    sys.stdout.write(
        f"{len(ids)} messages, {'some' if own_pid in pids else 'none'} not by workers\n"
    )


if __name__ == "__main__":
    main()
