"""A cluster of the size that operators complain about: 1,000 topics x 2,300 groups x 4 brokers.

Brokers and nameserver are processes of their own, so that the CPU time of the collector is that of
this process. The tables of the brokers are written as files before they start, in RocketMQ's
format, which takes seconds where requests would take minutes.

    async with big_cluster(folder) as cluster:
        async with Admin(cluster.namesrv) as admin: ...
"""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.brokers import LOOPBACK, SMALL, eventually, peer_of
from tests.support.ports import free_port
from tianzhou.admin.admin_client import Admin
from tianzhou.errors import TianzhouError

TOPICS, GROUPS, BROKERS, QUEUES = 1_000, 2_300, 4, 8
"""The size of the cluster of the complaint, and queues of a topic on a broker."""


@dataclass
class Server:
    """A broker or nameserver in its own process."""

    program: str
    """A command of `tianzhou`."""
    folder: Path
    settings: dict[str, object]
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        with (self.folder / "log.txt").open("ab") as output:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tianzhou",
                self.program,
                "-c",
                str(path),
                stdout=output,
                stderr=output,
            )

    async def stop(self, sign: signal.Signals = signal.SIGTERM) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(sign)
            await asyncio.wait_for(process.wait(), 60)

    def cpu_s(self) -> float:
        """CPU time of the process so far."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100


@dataclass
class BigCluster:
    """Its servers, and the address of the nameserver."""

    namesrv: str
    brokers: dict[str, Server] = field(default_factory=dict[str, Server])
    addresses: dict[str, str] = field(default_factory=dict[str, str])

    async def send(self, count: int, *, topics: int = TOPICS) -> None:
        """Send messages to each broker, round robin over topics and queues."""
        for address in self.addresses.values():
            async with peer_of(address) as peer:
                for number in range(count):
                    queue_id = number // topics % QUEUES
                    await peer.send(topic_name(number % topics), b"x", queue_id=queue_id)


def topic_name(number: int) -> str:
    return f"TEAM{number % 50:02}_topic_{number:04}"


def group_name(number: int) -> str:
    return f"TEAM{number % 50:02}_group_{number:04}"


def write_tables(folder: Path, topics: int, groups: int) -> None:
    """The tables of a broker: topics with retry topics, groups, committed offsets."""
    config = folder / "config"
    config.mkdir(parents=True, exist_ok=True)
    version = {"counter": 1, "timestamp": 1_700_000_000_000}
    names = {topic_name(number): QUEUES for number in range(topics)}
    names |= {f"%RETRY%{group_name(number)}": 1 for number in range(groups)}
    table = {
        name: {
            "topicName": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6,
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
        }
        for name, queues in names.items()
    }  # fmt: skip
    write(config / "topics.json", {"topicConfigTable": table, "dataVersion": version})
    members = {group_name(number): {"groupName": group_name(number)} for number in range(groups)}
    write(
        config / "subscriptionGroup.json",
        {"subscriptionGroupTable": members, "dataVersion": version},
    )
    offsets: dict[str, dict[str, int]] = {}
    for number in range(groups):
        topic, group = topic_name(number % topics), group_name(number)
        offsets[f"{topic}@{group}"] = {str(queue_id): 0 for queue_id in range(QUEUES)}
        offsets[f"%RETRY%{group}@{group}"] = {"0": 0}
    write(config / "consumerOffset.json", {"offsetTable": offsets, "dataVersion": version})


def write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


@asynccontextmanager
async def big_cluster(
    folder: Path, *, topics: int = TOPICS, groups: int = GROUPS, brokers: int = BROKERS
) -> AsyncGenerator[BigCluster]:
    """The cluster, until the end of the block."""
    async with AsyncExitStack() as stack:
        port = free_port()
        namesrv = Server(
            "namesrv", folder / "namesrv",
            {"listenPort": port, "bindAddress": LOOPBACK, "kvConfigPath": folder / "kv.json"},
        )  # fmt: skip
        await namesrv.start()
        stack.push_async_callback(namesrv.stop)
        cluster = BigCluster(f"{LOOPBACK}:{port}")
        for number in range(brokers):
            name, port = f"broker-{number}", free_port()
            store = folder / name / "store"
            write_tables(store, topics, groups)
            settings = SMALL | {
                "brokerName": name, "listenPort": port, "storePathRootDir": store,
                "namesrvAddr": cluster.namesrv, "mappedFileSizeConsumeQueue": 20 * 500,
                "vipListenEnable": "false",
            }  # fmt: skip
            server = Server("broker", folder / name, settings)
            cluster.brokers[name] = server
            cluster.addresses[name] = f"{LOOPBACK}:{port}"
            await server.start()
            stack.push_async_callback(server.stop)
        async with Admin(cluster.namesrv) as admin:

            async def is_complete() -> bool:
                try:
                    return len((await admin.clusters.info()).brokers) == brokers
                except TianzhouError:
                    return False

            await eventually(is_complete, "all brokers are registered")
        yield cluster
