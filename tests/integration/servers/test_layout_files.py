"""RocketMQ's sample files and those of `deploy/layouts/`: the slaves copy what is sent.

Each file is used as it is; flags give ports, folders and nameserver: all brokers are on one host.
"""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.support.brokers import SMALL, eventually, peer_of, running_namesrv

from tianzhou.broker.config import BrokerRole, load_broker_config
from tianzhou.broker.server import Broker
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given
from tianzhou.protocol.codes import ResponseCode

LAYOUTS = Path(__file__).parents[3] / "deploy" / "layouts"
# conf/2m-2s-sync and conf/2m-2s-async of RocketMQ have four files with these keys.
SAMPLE = """\
brokerClusterName=DefaultCluster
brokerName=broker-{name}
brokerId={broker_id}
deleteWhen=04
fileReservedTime=48
brokerRole={role}
flushDiskType=ASYNC_FLUSH
"""


def rocketmq_samples(folder: Path, role: str) -> list[Path]:
    """The files of one of these folders."""
    paths = list[Path]()
    for name in ("a", "b"):
        for suffix, broker_id, its_role in (("", 0, role), ("-s", 1, "SLAVE")):
            path = folder / f"broker-{name}{suffix}.properties"
            path.write_text(SAMPLE.format(name=name, broker_id=broker_id, role=its_role))
            paths.append(path)
    return paths


def files_of(source: str, folder: Path) -> list[Path]:
    if source.endswith("MASTER"):
        return rocketmq_samples(folder, source)
    return sorted((LAYOUTS / source).glob("*.properties"))


@pytest.mark.parametrize(
    "source", ["ASYNC_MASTER", "SYNC_MASTER", "2m-2s-async", "2m-2s-sync", "two-sites"]
)
async def test_every_slave_copies_what_its_master_acknowledges(tmp_path: Path, source: str) -> None:
    async with running_namesrv(tmp_path) as namesrv, AsyncExitStack() as stack:
        masters, slaves = dict[str, Broker](), dict[str, Broker]()
        paths = files_of(source, tmp_path)
        assert len(paths) == 4
        for path in paths:
            own = SMALL | {
                "namesrvAddr": namesrv, "storePathRootDir": tmp_path / path.stem,
                "brokerConfigPath": tmp_path / f"{path.stem}.saved",
            }  # fmt: skip
            del own["brokerName"]
            flags = [Given(key, str(value), "test", deliberate=True) for key, value in own.items()]
            loaded = load_broker_config(path, environ={}, flags=flags)
            broker = Broker(LiveSettings(loaded))
            stack.push_async_callback(broker.stop)
            await broker.start()
            group = slaves if loaded.config.is_slave else masters
            group[loaded.config.broker_name] = broker
        assert masters.keys() == slaves.keys()
        for name, master in masters.items():
            await copies(master, slaves[name])


async def copies(master: Broker, slave: Broker) -> None:
    """Wait until the slave follows; then it gets what is sent, with SYNC_MASTER before SEND_OK."""
    await eventually(lambda: slave.replication and slave.replication.is_following, "a slave")
    is_sync = master.settings.config.broker_role is BrokerRole.SYNC_MASTER
    async with peer_of(master.address) as peer:

        async def is_acknowledged() -> bool:
            return (await peer.send("t", b"probe")).code == ResponseCode.SUCCESS

        await eventually(is_acknowledged, "SEND_OK")
        assert await is_acknowledged()
    end = master.store.end_log_offset
    if is_sync:
        assert slave.store.end_log_offset == end
    await eventually(lambda: slave.store.end_log_offset == end, "the copy")
