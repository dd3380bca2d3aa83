"""`tianzhou broker ha` and `promote`, with brokers that answer as Tianzhou's and Apache's do."""

import zlib
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.support import registration
from tests.support.brokers import eventually, peer_of, running_namesrv
from tests.support.command_line import Cli
from tests.support.remoting import serving
from tests.support.replication import running_pair, sent_ok

from tianzhou.admin.admin_client import Admin
from tianzhou.clock import wall_ms
from tianzhou.protocol import headers
from tianzhou.protocol.bodies import encode
from tianzhou.protocol.bodies.ha import (
    FOLLOWING,
    HAClientInfo,
    HAConnectionInfo,
    HARuntimeInfo,
)
from tianzhou.protocol.bodies.registration import RegisterBrokerBody
from tianzhou.protocol.bodies.topics import KVTable
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.namesrv import RegisterBrokerRequest
from tianzhou.protocol.version import CURRENT_VERSION
from tianzhou.remoting.connection import Connection

CLUSTER = "c"


@dataclass
class StandIn:
    """A broker that answers what tools ask about replication."""

    broker_id: int
    end: int
    role: str
    info: HARuntimeInfo | None = None
    """None: the request is not supported, as by 4.9."""
    promotes: bool = False
    name: str = "broker-a"
    first: int = 0
    settings: dict[str, str] = field(default_factory=dict[str, str])
    changes: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    address: str = ""

    async def answer(self, _: Connection, request: Command) -> Command:
        done = ResponseCode.SUCCESS
        if request.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            runtime = {"commitLogMaxOffset": str(self.end), "commitLogMinOffset": str(self.first)}
            return Command(code=done, body=encode(KVTable(table=runtime)))
        if request.code == RequestCode.GET_BROKER_CONFIG:
            pairs = {
                "brokerRole": self.role, "brokerName": self.name, "brokerId": str(self.broker_id),
                "brokerClusterName": CLUSTER, **self.settings,
            }  # fmt: skip
            return Command(code=done, body="".join(f"{k}={v}\n" for k, v in pairs.items()).encode())
        if request.code == RequestCode.GET_BROKER_HA_STATUS and self.info is not None:
            return Command(code=done, body=encode(self.info))
        if request.code == RequestCode.CHANGE_BROKER_ROLE and self.promotes:
            self.changes.append(dict(request.fields))
            return Command(code=done, remark="epoch 4")
        return Command(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="no")


@asynccontextmanager
async def registered(folder: Path, *brokers: StandIn, hidden: int = 0) -> AsyncGenerator[Cli]:
    """A nameserver that knows the brokers, less the last `hidden` ones."""
    async with AsyncExitStack() as stack:
        namesrv = await stack.enter_async_context(running_namesrv(folder))
        peer = await stack.enter_async_context(peer_of(namesrv))
        for number, broker in enumerate(brokers):
            _, broker.address = await stack.enter_async_context(serving(broker.answer, drain_s=0))
            if number >= len(brokers) - hidden:
                continue
            body = registration.encode(
                RegisterBrokerBody(), compressed=False, broker_version=CURRENT_VERSION
            )
            header = RegisterBrokerRequest(
                broker_name=broker.name, broker_addr=broker.address, cluster_name=CLUSTER,
                ha_server_addr=broker.address, broker_id=broker.broker_id, compressed=False,
                body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
            )  # fmt: skip
            # Each broker needs its own connection: one that closes unregisters it.
            own = peer
            if number:
                own = await stack.enter_async_context(peer_of(namesrv))
            await own.expect(RequestCode.REGISTER_BROKER, headers.encode(header), body)
        yield Cli(namesrv)


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIANZHOU_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")


def our_master(*slaves: HAConnectionInfo, end: int = 5000) -> StandIn:
    info = HARuntimeInfo(
        master=True, master_max_offset=end, connections=list(slaves), role="SYNC_MASTER", epoch=0,
        in_sync_slave_count=sum(each.in_sync for each in slaves),
    )  # fmt: skip
    return StandIn(0, end, "SYNC_MASTER", info)


def our_slave(end: int = 4600, broker_id: int = 1, **client: object) -> StandIn:
    values: dict[str, object] = {
        "master_addr": "h:10912", "broker_addr": "h:10911", "state": FOLLOWING, "max_offset": end,
        "master_max_offset": 5000, "behind_bytes": 400, "is_tianzhou": True,
        "transferred_bytes_per_second": 1234,
    }  # fmt: skip
    info = HARuntimeInfo(client=HAClientInfo(**(values | client)), role="SLAVE", epoch=0)  # type: ignore[arg-type] # fields by name
    return StandIn(broker_id, end, "SLAVE", info, promotes=True)


# -- ha --------------------------------------------------------------------------------------------


async def test_master_and_slave_are_shown_with_state_and_lag(tmp_path: Path) -> None:
    rows = [
        HAConnectionInfo(
            addr="h:4711", slave_ack_offset=4600, diff=400, in_sync=True, behind_ms=7,
            transferred_bytes_per_second=99, slave_name="id:1",
        ),
        HAConnectionInfo(
            addr="i:4711", slave_ack_offset=9000, diff=-4000, slave_name="i",
            problem="is ahead of this log",
        ),
    ]  # fmt: skip
    async with registered(tmp_path, our_master(*rows), our_slave()) as cli:
        ran = await cli.run("broker", "ha", "broker-a")
        assert "SYNC_MASTER" in ran.out
        (line,) = [each for each in ran.out.splitlines() if "id:1 h:4711" in each]
        assert line.split()[-7:] == ["in", "sync", "5,000", "4,600", "400", "7", "99"]
        assert "is ahead of this log" in ran.out
        (line,) = [each for each in ran.out.splitlines() if "broker-a[1]" in each]
        assert FOLLOWING in line
        assert line.split()[-5:] == ["4,600", "-", "400", "-", "1,234"]
        told = (await cli.run("broker", "ha", CLUSTER, "--json")).json
        assert told["broker-a"]["haConnectionInfo"][0]["behindMs"] == 7
        assert told["broker-a[1]"]["haClientRuntimeInfo"]["state"] == FOLLOWING


async def test_a_slave_that_lacks_old_messages_is_not_called_in_sync(tmp_path: Path) -> None:
    rows = [
        HAConnectionInfo(addr="a:1", slave_ack_offset=1, diff=8, in_sync=True, behind_ms=1000),
        HAConnectionInfo(addr="b:1", slave_ack_offset=1, diff=8, in_sync=True, behind_ms=999),
        HAConnectionInfo(addr="c:1", slave_ack_offset=1, diff=8, in_sync=False, behind_ms=0),
        HAConnectionInfo(addr="d:1", slave_ack_offset=1, diff=8, in_sync=True),
    ]
    async with registered(tmp_path, our_master(*rows)) as cli:
        ran = await cli.run("broker", "ha", "broker-a")
        states = {
            name: state
            for name in ("a:1", "b:1", "c:1", "d:1")
            for state in ("catching up", "in sync", "behind")
            for line in ran.out.splitlines()
            if f" {name} " in line and f" {state} " in line
        }
        assert states == {
            "a:1": "catching up", "b:1": "in sync", "c:1": "behind", "d:1": "in sync",
        }  # fmt: skip


async def test_a_slave_without_connection_says_why(tmp_path: Path) -> None:
    slave = our_slave(state="refused", problem="mappedFileSizeCommitLog is 1 here, 2 there")
    async with registered(tmp_path, our_master(), slave) as cli:
        ran = await cli.run("broker", "ha", "broker-a")
        assert "mappedFileSizeCommitLog is 1 here, 2 there" in ran.out
        assert "broker-a is a master without slaves, its log ends at 5,000" in ran.out


async def test_brokers_of_4_9_are_compared_by_the_ends_of_their_logs(tmp_path: Path) -> None:
    master, slave = StandIn(0, 5000, "ASYNC_MASTER"), StandIn(1, 4000, "SLAVE")
    async with registered(tmp_path, master, slave) as cli:
        ran = await cli.run("broker", "ha", "broker-a")
        (line,) = [each for each in ran.out.splitlines() if each.startswith("broker-a ")]
        assert line.split()[-5:] == ["5,000", "4,000", "1,000", "-", "-"]
        (line,) = [each for each in ran.out.splitlines() if each.startswith("broker-a[1]")]
        assert line.split()[-5:] == ["4,000", "-", "1,000", "-", "-"]
        assert "brokers of 4.9 report no replication status" in ran.out


async def test_a_slave_of_5x_is_compared_with_its_master_and_shown_when_silent(
    tmp_path: Path,
) -> None:
    old = HAClientInfo(
        master_addr="h:10912", max_offset=4000, last_read_timestamp=wall_ms() - 3_600_000
    )
    slave = StandIn(1, 4000, "SLAVE", HARuntimeInfo(client=old))
    async with registered(tmp_path, our_master(), slave) as cli:
        ran = await cli.run("broker", "ha", "broker-a")
        (line,) = [each for each in ran.out.splitlines() if each.startswith("broker-a[1]")]
        assert "silent for 3,60" in line
        assert line.split()[-3] == "1,000"


# -- promote ---------------------------------------------------------------------------------------


async def test_a_slave_is_promoted_where_no_nameserver_shows_a_master(tmp_path: Path) -> None:
    slave = our_slave()
    async with registered(tmp_path, slave) as cli:
        ran = await cli.run("broker", "promote", "broker-a", "--dry-run")
        assert "its log ends at 4,600" in ran.out
        assert "no nameserver shows a master of broker-a" in ran.out
        assert "would make broker-a[1] the ASYNC_MASTER of broker-a; nothing was changed" in ran.out
        assert slave.changes == []
        refusal = await cli.run("broker", "promote", "broker-a", code=2)
        assert "pass --yes" in refusal.err
        ran = await cli.run("broker", "promote", "broker-a[1]", "--role", "sync", "--yes")
        assert slave.changes == [{"role": "SYNC_MASTER", "force": "false"}]
        assert f"{slave.address} is the SYNC_MASTER of broker-a, with id 0" in ran.out
        assert "epoch 4" in ran.out
        assert "set brokerRole=SLAVE and brokerId=1" in ran.out


async def test_a_promotion_is_refused_while_a_nameserver_shows_a_master(tmp_path: Path) -> None:
    master, slave = our_master(), our_slave()
    async with registered(tmp_path, master, slave) as cli:
        ran = await cli.run("broker", "promote", "broker-a", "--yes", code=1)
        assert f"broker-a has the master {master.address}" in ran.err
        assert "it responds; stop it first" in ran.err
        assert slave.changes == []
        ran = await cli.run("broker", "promote", slave.address, "--force", "--yes")
        assert slave.changes == [{"role": "ASYNC_MASTER", "force": "true"}]
        assert f"make sure that {master.address} is stopped" in ran.out


async def test_a_shorter_log_is_promoted_with_a_warning(tmp_path: Path) -> None:
    async with registered(tmp_path, our_slave(4000), our_slave(4600, broker_id=2)) as cli:
        ran = await cli.run("broker", "promote", "broker-a", "--yes", code=1)
        assert "broker-a has several slaves, name one of them: broker-a[1]" in ran.err
        ran = await cli.run("broker", "promote", "broker-a[1]", "--dry-run")
        assert "the log of broker-a[2] is 600 bytes longer" in " ".join(ran.err.split())
        ran = await cli.run("broker", "promote", "broker-a[2]", "--dry-run")
        assert "longer" not in ran.err


async def test_what_is_no_slave_of_ours_is_not_promoted(tmp_path: Path) -> None:
    apache = StandIn(1, 10, "SLAVE")
    unregistered = our_slave()
    unregistered.name = "broker-b"
    master = our_master()
    async with registered(tmp_path, master, apache, unregistered, hidden=1) as cli:
        ran = await cli.run("broker", "promote", master.address, "--yes", code=1)
        assert "is no slave: it is SYNC_MASTER already" in ran.err
        ran = await cli.run("broker", "promote", apache.address, "--force", "--yes", code=1)
        assert "it is a broker of Apache's" in ran.err
        assert "set brokerRole=ASYNC_MASTER and brokerId=0" in ran.err
        ran = await cli.run("broker", "promote", "nothing", "--yes", code=1)
        assert "registered slaves: broker-a[1]" in ran.err
        ran = await cli.run("broker", "promote", unregistered.address, "--yes")
        assert "is the ASYNC_MASTER of broker-b" in ran.out


async def test_a_message_for_a_group_without_master_is_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    async with running_pair(tmp_path) as pair:
        async with peer_of(pair.master.address) as master:
            await sent_ok(master, "orders", b"first")
        await pair.in_step()
        async with Admin(pair.namesrv) as admin:

            async def is_registered_by_the_slave() -> bool:
                route = await admin.topics.route("orders")
                return any(1 in (each.addresses or {}) for each in route.brokers)

            await eventually(is_registered_by_the_slave, "the topic of the slave")
        await pair.stop_master()
        ran = await Cli(pair.namesrv).run("message", "send", "orders", "second", code=1)
        assert "no broker accepts messages for topic 'orders'" in ran.err
        assert "no nameserver shows a master" in ran.err
