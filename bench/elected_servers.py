"""Starts three brokers that elect their master, ours with etcd or Apache's with its controller.

Both acknowledge a message when all replicas in sync have it, and all three are in sync when the
group is yielded. One etcd and one controller: neither is on the path of a message.
"""

import json
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.apache.requests import SUCCESS
from tests.support.apache.servers import (
    LOOPBACK,
    Server,
    apache_broker,
    apache_namesrv,
    ask_server,
    free_port,
    tianzhou_broker,
    tianzhou_namesrv,
)
from tests.support.etcd import EtcdCluster, etcd_cluster

from bench.broker_servers import COMMON, NAMESRV_JVM, KeepFiles, Measured, await_send, directory
from bench.replicated_servers import ALONE, OURS, tianzhou

REPLICAS = 3
ELECTED = "3 elected replicas"
APACHE_VERSION = "5.5.0"
APACHE = f"Apache {APACHE_VERSION}"
APACHE_JVM = ("-XX:TieredStopAtLevel=4", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-Xms2g", "-Xmx2g")
"""Half the heap that a single broker gets in other benchmarks, as three share the memory."""

_STATE = f"/tianzhou/DefaultCluster/{COMMON['brokerName']}/"
_SYNC_STATE_SET = 1006
_DEADLINE_S = 60.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Group:
    """Brokers of one name that run; the first of them is the master."""

    servers: str
    role: str
    namesrv: Server
    brokers: tuple[Server, ...]
    authority_pids: tuple[int, ...] = ()
    """etcd; Apache's controller is in its nameserver."""

    @property
    def master(self) -> Server:
        return self.brokers[0]

    @property
    def measured(self) -> Measured:
        return Measured(self.servers, self.master.pid, self.namesrv.pid, self.master.port, 0.0)

    @property
    def slave_pids(self) -> tuple[int, ...]:
        return tuple(each.pid for each in self.brokers[1:])


@contextmanager
def alone(keep_files: KeepFiles | None = None) -> Generator[Group]:
    """Our broker without replication, with default settings."""
    with tianzhou(ALONE, keep_files) as cluster:
        yield Group(OURS, ALONE, cluster.namesrv, (cluster.master,))


# -- ours ------------------------------------------------------------------------------------------


@contextmanager
def elected(keep_files: KeepFiles | None = None) -> Generator[Group]:
    """Three of our brokers as SYNC_MASTER, with default settings."""
    with (
        directory(keep_files) as home,
        etcd_cluster(home / "etcd") as etcd,
        tianzhou_namesrv() as namesrv,
        ExitStack() as stack,
    ):

        def broker(name: str) -> Server:
            pairs: dict[str, Any] = COMMON | {
                "storePathRootDir": home / name, "brokerRole": "SYNC_MASTER",
                "haEtcdEndpoints": etcd.endpoints,
            }  # fmt: skip
            return stack.enter_context(tianzhou_broker(namesrv, **pairs))

        brokers = [broker(name) for name in "abc"[:REPLICAS]]
        _await(partial(_is_complete, etcd), "all of our replicas in sync", brokers)
        master = _master_address(etcd)
        brokers.sort(key=lambda each: each.address != master)
        await_send(brokers[0].port)
        pids = tuple(each.process.pid for each in etcd.members if each.process)
        yield Group(OURS, ELECTED, namesrv, tuple(brokers), pids)


def _is_complete(etcd: EtcdCluster) -> bool:
    state = etcd.keys(_STATE).get(f"{_STATE}state")
    return state is not None and len(json.loads(state)["inSync"]) == REPLICAS


def _master_address(etcd: EtcdCluster) -> str:
    keys = etcd.keys(_STATE)
    master = json.loads(keys[f"{_STATE}state"])["master"]
    address: str = json.loads(keys[f"{_STATE}replicas/{master}"])["addr"]
    return address


# -- Apache's --------------------------------------------------------------------------------------


@contextmanager
def apache(keep_files: KeepFiles | None = None) -> Generator[Group]:
    """Apache's brokers in controller mode, which wait for all replicas in sync."""
    controller = f"{LOOPBACK}:{free_port()}"
    with directory(keep_files) as home, ExitStack() as stack:
        namesrv = stack.enter_context(
            apache_namesrv(
                APACHE_VERSION, jvm_options=NAMESRV_JVM, enableControllerInNamesrv="true",
                controllerDLegerGroup="bench", controllerDLegerPeers=f"n0-{controller}",
                controllerDLegerSelfId="n0", controllerStorePath=home / "controller",
            )
        )  # fmt: skip

        def broker(name: str) -> Server:
            return stack.enter_context(_apache_replica(namesrv, controller, home / name))

        brokers = [broker(name) for name in "abc"[:REPLICAS]]
        found = partial(_apache_master, controller, brokers)
        _await(lambda: found() is not None, "all of Apache's replicas in sync", brokers)
        master = found()
        brokers.sort(key=lambda each: each.address != master)
        await_send(brokers[0].port)
        yield Group(APACHE, ELECTED, namesrv, tuple(brokers))


@contextmanager
def _apache_replica(namesrv: Server, controller: str, store: Path) -> Generator[Server]:
    pairs: dict[str, Any] = COMMON | {
        "enableControllerMode": "true", "controllerAddr": controller, "brokerRole": "SYNC_MASTER",
        "allAckInSyncStateSet": "true", "inSyncReplicas": 2, "minInSyncReplicas": 2,
        "storePathEpochFile": store / "epochFileCheckpoint",
        "storePathBrokerIdentity": store / "brokerIdentity",
    }  # fmt: skip
    with apache_broker(
        APACHE_VERSION, namesrv.address, store_dir=store, jvm_options=APACHE_JVM, graceful=False,
        **pairs,
    ) as server:  # fmt: skip
        yield server


def _apache_master(controller: str, brokers: list[Server]) -> str | None:
    """The address of the master, once all replicas are in sync."""
    name: str = COMMON["brokerName"]
    answer = ask_server(controller, _SYNC_STATE_SET, body=json.dumps([name]).encode())
    if answer.code != SUCCESS:
        return None
    table: dict[str, dict[str, Any]] = json.loads(answer.body).get("replicasInfoTable") or {}
    info = table.get(name, {})
    if len(info.get("inSyncReplicas") or ()) < REPLICAS:
        return None
    address: str = info["masterAddress"]
    return address if any(each.address == address for each in brokers) else None


def _await(probe: Callable[[], bool], what: str, brokers: list[Server]) -> None:
    deadline_s = time.monotonic() + _DEADLINE_S
    while not probe():
        if time.monotonic() > deadline_s:
            logs = "\n".join(each.report() for each in brokers)
            raise TimeoutError(f"{what}: not within {_DEADLINE_S} s\n{logs}")
        time.sleep(_POLL_S)
