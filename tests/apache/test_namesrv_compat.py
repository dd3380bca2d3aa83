"""Our nameserver with stock programs: Apache's brokers, clients and mqadmin.

One cluster serves most tests: a broker of each version, registered with our nameserver and with
Apache's own of both versions, so that responses about the same brokers can be compared.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.apache import requests
from tests.support.apache.requests import ask_server
from tests.support.apache.servers import (
    VERSIONS,
    Server,
    Shell,
    apache_broker,
    apache_namesrv,
    tianzhou_broker,
    tianzhou_namesrv,
    wait_to_hold,
    wait_until,
)
from tests.support.gate import EACH_VERSION

pytestmark = pytest.mark.apache

CLUSTER = "DefaultCluster"
NEWEST = VERSIONS[-1]
AT_ONCE_S = 60
"""Well below the 120 s after which silence alone would remove a broker."""
SOON_S = 90

GET_KV_CONFIG = 101
GET_ALL_TOPICS = 206
GET_KVLIST_BY_NAMESPACE = 219

Shells = Callable[[str], Shell]
Route = dict[str, Any]


def broker_name(version: str) -> str:
    return f"broker-{version}"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Our nameserver, Apache's by version, and brokers by version, registered with all of them."""

    namesrv: Server
    apache_namesrvs: dict[str, Server]
    brokers: dict[str, Server]


@pytest.fixture(scope="module")
def cluster(apache: None) -> Iterator[Cluster]:
    with ExitStack() as stack:
        namesrv = stack.enter_context(tianzhou_namesrv(scanNotActiveBrokerInterval=200))
        theirs = {
            version: stack.enter_context(apache_namesrv(version, graceful=False))
            for version in VERSIONS
        }
        addresses = ";".join([namesrv.address, *(server.address for server in theirs.values())])
        brokers = {
            version: stack.enter_context(
                apache_broker(version, addresses, brokerName=broker_name(version), graceful=False)
            )
            for version in VERSIONS
        }
        yield Cluster(namesrv, theirs, brokers)


def route_of(namesrv: Server, topic: str) -> Route | None:
    """The route of a topic for a current client; None if there is no such topic."""
    answer = ask_server(namesrv.address, requests.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    if answer.code == requests.TOPIC_NOT_EXIST:
        return None
    assert answer.code == requests.SUCCESS, answer
    route: Route = json.loads(answer.body)
    return route


def queues_of(namesrv: Server, topic: str) -> dict[str, tuple[int, int, int]]:
    """By broker name: permission, read queues, write queues."""
    route = route_of(namesrv, topic)
    return {
        data["brokerName"]: (data["perm"], data["readQueueNums"], data["writeQueueNums"])
        for data in (route or {"queueDatas": []})["queueDatas"]
    }


def agree(check: Callable[[], None]) -> None:
    """Responses of the nameservers are equal once brokers have registered with all of them."""
    wait_to_hold(check, timeout_s=SOON_S)


def wait_for_topic(namesrv: Server, topic: str, broker_names: set[str]) -> None:
    """A broker registers a new topic shortly after its response to mqadmin."""
    wait_until(
        lambda: set(queues_of(namesrv, topic)) == broker_names,
        f"topic {topic} on {broker_names}",
        timeout_s=SOON_S,
        seen=lambda: route_of(namesrv, topic),
    )


def create_topic(shell: Shell, namesrv: Server, topic: str, broker: Server, name: str) -> None:
    output = shell.mqadmin(
        namesrv.address, "updateTopic", "-b", broker.address, "-t", topic, "-r", "4", "-w", "4"
    )
    assert f"create topic to {broker.address} success." in output
    wait_for_topic(namesrv, topic, {name})


def wait_for_bodies(shell: Shell, consumer: str, bodies: list[str]) -> None:
    """All bodies have arrived at the consumer, each once."""
    wait_until(
        lambda: len(shell.consumed(consumer)) >= len(bodies),
        f"{len(bodies)} messages at {consumer}",
        timeout_s=SOON_S,
        seen=lambda: (len(shell.consumed(consumer)), shell.report()),
    )
    assert sorted(message["body"] for message in shell.consumed(consumer)) == sorted(bodies)


# -- the same brokers, our answers and Apache's ---------------------------------------------------


@pytest.mark.parametrize("client", [requests.V4_9_3, requests.V4_9_7, requests.V5_5_0])
@pytest.mark.parametrize("topic", ["TBW102", *map(broker_name, VERSIONS), "NoSuchTopic"])
def test_route_equals_that_of_apache(cluster: Cluster, topic: str, client: int) -> None:
    def is_the_same() -> None:
        for extra in ({}, {"acceptStandardJsonOnly": "true"}):
            ours, oldest, newest = (
                ask_server(
                    server.address,
                    requests.GET_ROUTEINFO_BY_TOPIC,
                    {"topic": topic} | extra,
                    client_version=client,
                )
                for server in (cluster.namesrv, *cluster.apache_namesrvs.values())
            )
            assert ours == newest
            # 4.9 has no acting master; its clients ignore the field.
            assert ours.body.replace(b',"enableActingMaster":false', b"") == oldest.body
            assert ours.code == oldest.code

    agree(is_the_same)


def test_cluster_info_equals_that_of_apache(cluster: Cluster) -> None:
    def is_the_same() -> None:
        for client in (requests.V4_9_3, requests.V5_5_0):
            ours, newest = (
                ask_server(server.address, requests.GET_BROKER_CLUSTER_INFO, client_version=client)
                for server in (cluster.namesrv, cluster.apache_namesrvs[NEWEST])
            )
            assert ours == newest
            for version, broker in cluster.brokers.items():
                assert f'"brokerAddrs":{{0:"{broker.address}"}}'.encode() in ours.body
                assert f'"brokerName":"{broker_name(version)}"'.encode() in ours.body

    agree(is_the_same)


LISTS: dict[str, tuple[int, dict[str, str]]] = {
    "all topics": (GET_ALL_TOPICS, {}),
    "topics of a cluster": (224, {"cluster": CLUSTER}),
    "topics of an unknown cluster": (224, {"cluster": "nowhere"}),
    "system topics": (304, {}),
    "unit topics": (311, {}),
    "topics with unit subscriptions": (312, {}),
    "topics with unit subscriptions only": (313, {}),
}


@pytest.mark.parametrize("what", LISTS)
def test_topic_list_equals_that_of_apache(cluster: Cluster, what: str) -> None:
    code, fields = LISTS[what]

    def is_the_same() -> None:
        ours, newest = (
            ask_server(server.address, code, fields)
            for server in (cluster.namesrv, cluster.apache_namesrvs[NEWEST])
        )
        assert (ours.code, ours.remark, ours.fields) == (newest.code, newest.remark, newest.fields)
        our_topics, their_topics = json.loads(ours.body), json.loads(newest.body)
        # Java lists them in the order of a hash table.
        for answer in (our_topics, their_topics):
            answer["topicList"].sort()
        assert our_topics.pop("brokerAddr", "") in ("", *address_list(cluster))
        assert their_topics.pop("brokerAddr", "") in ("", *address_list(cluster))
        assert our_topics == their_topics

    agree(is_the_same)


def address_list(cluster: Cluster) -> list[str]:
    return [broker.address for broker in cluster.brokers.values()]


# -- messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", EACH_VERSION)
def test_stock_clients_exchange_messages(cluster: Cluster, shells: Shells, version: str) -> None:
    shell, address = shells(version), cluster.namesrv.address
    topic, name = f"Exchange-{version[0]}", f"exchange-{version[0]}"
    create_topic(shell, cluster.namesrv, topic, cluster.brokers[version], broker_name(version))
    shell.start_consumer(name, address, group=name, topic=topic)
    shell.start_producer(name, address, group=name)
    bodies = [f"{version} 消息 {number}" for number in range(100)]
    sent = shell.send(name, topic, bodies, tags="TagA", keys="key-1 key-2")
    assert {result["status"] for result in sent} == {"SEND_OK"}
    assert {result["queueId"] for result in sent} == {0, 1, 2, 3}
    wait_for_bodies(shell, name, bodies)
    shell.ask("stop_consumer", name=name)
    shell.ask("stop_producer", name=name)
    consumed = shell.consumed(name)
    assert len(consumed) == len(bodies), "nothing came twice while the consumer was stopping"
    assert {(each["tags"], each["keys"]) for each in consumed} == {("TagA", "key-1 key-2")}


def test_brokers_of_both_versions_share_a_topic(cluster: Cluster, shells: Shells) -> None:
    address, topic = cluster.namesrv.address, "SharedTopic"
    arguments = ("updateTopic", "-c", CLUSTER, "-t", topic, "-r", "2", "-w", "2")
    shells(NEWEST).mqadmin(address, *arguments)
    wait_for_topic(cluster.namesrv, topic, set(map(broker_name, VERSIONS)))
    shells(NEWEST).start_consumer("shared", address, group="shared", topic=topic)
    bodies: list[str] = []
    for version in VERSIONS:
        shell = shells(version)
        shell.start_producer("shared", address, group=f"shared-{version[0]}")
        batch = [f"{version} {number}" for number in range(20)]
        sent = shell.send("shared", topic, batch)
        assert {result["brokerName"] for result in sent} == set(map(broker_name, VERSIONS))
        shell.ask("stop_producer", name="shared")
        bodies += batch
    wait_for_bodies(shells(NEWEST), "shared", bodies)
    consumed = shells(NEWEST).consumed("shared")
    assert {each["brokerName"] for each in consumed} == set(map(broker_name, VERSIONS))
    shells(NEWEST).ask("stop_consumer", name="shared")


# -- mqadmin --------------------------------------------------------------------------------------


@pytest.fixture(params=EACH_VERSION)
def version(request: pytest.FixtureRequest) -> str:
    """The version of the stock mqadmin."""
    parameter: str = request.param
    return parameter


@pytest.fixture
def mqadmin(cluster: Cluster, shells: Shells, version: str) -> Callable[..., str]:
    """The stock mqadmin on our nameserver; its output must not contain a stack trace."""

    def run(*arguments: str) -> str:
        output = shells(version).mqadmin(cluster.namesrv.address, *arguments)
        assert "Exception" not in output, output
        return output

    return run


def test_cluster_list(cluster: Cluster, shells: Shells, version: str) -> None:
    # The 4.9 tool misses a value in the runtime info of a 5.x broker, prints the stack trace, and
    # lists the broker nevertheless; it does the same on Apache's nameserver.
    output = shells(version).mqadmin(cluster.namesrv.address, "clusterList")
    rows = {tuple(line.split()[:5]) for line in output.splitlines() if line.startswith(CLUSTER)}
    assert rows == {
        (CLUSTER, broker_name(v), "0", broker.address, "V" + v.replace(".", "_"))
        for v, broker in cluster.brokers.items()
    }


def test_topic_list(
    cluster: Cluster, shells: Shells, version: str, mqadmin: Callable[..., str]
) -> None:
    def is_the_same() -> None:
        ours = mqadmin("topicList").split()
        newest = cluster.apache_namesrvs[NEWEST].address
        assert sorted(ours) == sorted(shells(version).mqadmin(newest, "topicList").split())
        assert {"TBW102", CLUSTER, *map(broker_name, VERSIONS)} <= set(ours)

    agree(is_the_same)


def test_update_route_and_delete_of_a_topic(
    cluster: Cluster, shells: Shells, version: str, mqadmin: Callable[..., str]
) -> None:
    topic, names = f"Admin-{version[0]}", set(map(broker_name, VERSIONS))
    output = mqadmin("updateTopic", "-c", CLUSTER, "-t", topic, "-r", "6", "-w", "3", "-p", "4")
    for broker in cluster.brokers.values():
        assert f"create topic to {broker.address} success." in output
    wait_for_topic(cluster.namesrv, topic, names)
    assert queues_of(cluster.namesrv, topic) == dict.fromkeys(names, (4, 6, 3))

    theirs = cluster.apache_namesrvs[NEWEST]
    wait_for_topic(theirs, topic, names)
    assert mqadmin("topicRoute", "-t", topic) == shells(version).mqadmin(
        theirs.address, "topicRoute", "-t", topic
    )
    assert mqadmin("topicClusterList", "-t", topic).split() == [CLUSTER]

    def is_deleted() -> None:
        output = mqadmin("deleteTopic", "-c", CLUSTER, "-t", topic)
        assert f"delete topic [{topic}] from cluster [{CLUSTER}] success." in output
        assert f"delete topic [{topic}] from NameServer success." in output
        assert route_of(cluster.namesrv, topic) is None
        assert topic not in mqadmin("topicList").split()

    # A registration in flight restores the topic, as it does with Apache's nameserver.
    agree(is_deleted)


def test_kv_config(cluster: Cluster, version: str, mqadmin: Callable[..., str]) -> None:
    namespace = f"cities-{version[0]}"

    def value_of(key: str) -> str | None:
        fields = {"namespace": namespace, "key": key}
        return ask_server(cluster.namesrv.address, GET_KV_CONFIG, fields).fields.get("value")

    kept = cluster.namesrv.home / "kvConfig.json"
    for key, value in (("north", "北京"), ("south", "广州"), ("north", "哈尔滨")):
        output = mqadmin("updateKvConfig", "-s", namespace, "-k", key, "-v", value)
        assert "create or update kv config to namespace success." in output
        assert value_of(key) == value
    assert json.loads(kept.read_text())["configTable"][namespace] == {
        "north": "哈尔滨",
        "south": "广州",
    }
    listed = ask_server(cluster.namesrv.address, GET_KVLIST_BY_NAMESPACE, {"namespace": namespace})
    assert json.loads(listed.body) == {"table": {"north": "哈尔滨", "south": "广州"}}

    output = mqadmin("deleteKvConfig", "-s", namespace, "-k", "north")
    assert "delete kv config from namespace success." in output
    assert (value_of("north"), value_of("south")) == (None, "广州")
    assert json.loads(kept.read_text())["configTable"][namespace] == {"south": "广州"}


def namesrv_config(mqadmin: Callable[..., str]) -> dict[str, str]:
    found: list[tuple[str, str]] = re.findall(
        r"^(\S+) *=  (.*)$", mqadmin("getNamesrvConfig"), re.M
    )
    return dict(found)


def test_namesrv_config(cluster: Cluster, mqadmin: Callable[..., str]) -> None:
    before = namesrv_config(mqadmin)
    assert before["listenPort"] == str(cluster.namesrv.port)
    assert before["kvConfigPath"] == str(cluster.namesrv.home / "kvConfig.json")
    assert before["orderMessageEnable"] == "false"

    for value in ("true", "false"):
        output = mqadmin("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", value)
        assert "update name server config success!" in output
        after = namesrv_config(mqadmin)
        assert after.pop("orderMessageEnable") == value
        assert after == {k: v for k, v in before.items() if k != "orderMessageEnable"}


def test_order_configuration(cluster: Cluster, version: str, mqadmin: Callable[..., str]) -> None:
    topic = broker_name(version)
    order = f"{broker_name(version)}:1"
    output = mqadmin("updateOrderConf", "-t", topic, "-m", "put", "-v", order)
    assert f"update orderConf success. topic=[{topic}], orderConf=[{order}]" in output
    output = mqadmin("updateOrderConf", "-t", topic, "-m", "get")
    assert f"get orderConf success. topic=[{topic}], orderConf=[{order}]" in output

    mqadmin("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
    route = route_of(cluster.namesrv, topic)
    assert route is not None
    assert route["orderTopicConf"] == order
    mqadmin("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "false")

    output = mqadmin("updateOrderConf", "-t", topic, "-m", "delete")
    assert f"delete orderConf success. topic=[{topic}]" in output
    fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": topic}
    assert ask_server(cluster.namesrv.address, GET_KV_CONFIG, fields).fields == {}


def test_write_permission_is_wiped_and_restored(
    cluster: Cluster, shells: Shells, version: str
) -> None:
    mine, other = (broker_name(v) for v in (version, *(v for v in VERSIONS if v != version)))
    namesrvs = (cluster.namesrv, *cluster.apache_namesrvs.values())
    everywhere = ";".join(namesrv.address for namesrv in namesrvs)
    # A registration with changes, such as a deleted topic, resets permissions. A new topic is
    # registered immediately with all pending changes, so none are left for the timer.
    create_everywhere(shells(version), namesrvs, f"Settled-{version[0]}")
    before = queues_of(cluster.namesrv, "TBW102")

    def counts() -> dict[str, str]:
        return {namesrv.address: str(count_topics_on(namesrv, mine)) for namesrv in namesrvs}

    def done_undisturbed(verb: str, words: str, permission: int) -> bool:
        """One attempt; False if a late registration of a busy Apache broker interfered."""
        counted = counts()
        output = shells(version).mqadmin(everywhere, verb, "-b", mine)
        queues = [queues_of(namesrv, "TBW102") for namesrv in namesrvs]
        if counts() != counted:
            return False
        pattern = rf"{words} broker\[{mine}\] in name server\[(\S+)\] OK, (\d+)"
        assert dict(re.findall(pattern, output)) == counted, output
        assert queues == [{mine: (permission, 8, 8), other: before[other]}] * 3
        return True

    for step in (
        # Wiping preserves the inherit bit of this topic; restoring sets only read and write.
        ("wipeWritePerm", "wipe write perm of", before[mine][0] & ~2),
        ("addWritePerm", "add write perm of", 6),
    ):
        attempt = partial(done_undisturbed, *step)
        wait_until(attempt, f"{step[0]} with no registration beside it", timeout_s=SOON_S)


def count_topics_on(namesrv: Server, name: str) -> int:
    listed = json.loads(ask_server(namesrv.address, GET_ALL_TOPICS).body)["topicList"]
    count = sum(name in queues_of(namesrv, topic) for topic in listed)
    assert count > 5
    return count


# -- brokers that go ------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", EACH_VERSION)
def test_killed_broker_is_unregistered_immediately(apache: None, gone: str) -> None:
    with (
        tianzhou_namesrv() as namesrv,
        apache_broker(gone, namesrv.address, graceful=False) as broker,
    ):
        assert route_of(namesrv, "TBW102") is not None
        broker.kill()
        wait_until(
            lambda: route_of(namesrv, "TBW102") is None,
            "end of the routes of a killed broker",
            timeout_s=AT_ONCE_S,
            seen=lambda: route_of(namesrv, "TBW102"),
        )
        info = ask_server(namesrv.address, requests.GET_BROKER_CLUSTER_INFO)
        assert broker.address.encode() not in info.body


def test_silent_brokers_expire_and_register_again(apache: None) -> None:
    with (
        tianzhou_namesrv(
            scanNotActiveBrokerInterval=200, brokerChannelExpiredTime=25_000
        ) as namesrv,
        apache_broker(NEWEST, namesrv.address, graceful=False) as broker,
    ):
        wait_for_topic(namesrv, "TBW102", {"broker-a"})
        try:
            broker.pause()
            wait_until(
                lambda: not queues_of(namesrv, "TBW102"),
                "end of the routes of a silent broker",
                timeout_s=SOON_S,
                seen=lambda: route_of(namesrv, "TBW102"),
            )
        finally:
            broker.resume()
        wait_for_topic(namesrv, "TBW102", {"broker-a"})


# -- a list of brokers -----------------------------------------------------------------------------


def test_stock_brokers_register_by_address_and_signing_brokers_by_account(
    apache: None, tmp_path: Path
) -> None:
    account = {"accessKey": "broker-service", "secretKey": "secret-of-brokers"}
    (tmp_path / "addresses.yml").write_text("brokerAddresses: [127.0.0.0/8]\n")
    (tmp_path / "accounts.yml").write_text(f"brokerAccounts: [{json.dumps(account)}]\n")
    with ExitStack() as stack:
        by_address, by_account = (
            stack.enter_context(tianzhou_namesrv(accessFile=tmp_path / name))
            for name in ("addresses.yml", "accounts.yml")
        )
        both = f"{by_address.address};{by_account.address}"
        for version in VERSIONS:
            stack.enter_context(
                apache_broker(
                    version, both, brokerName=broker_name(version), graceful=False,
                    await_registration=version == NEWEST,
                    innerClientAuthenticationCredentials=json.dumps(account),
                    authenticationMetadataProvider="org.apache.rocketmq.auth.authentication."
                    "provider.LocalAuthenticationMetadataProvider",
                )
            )  # fmt: skip
        wait_for_topic(by_address, "TBW102", set(map(broker_name, VERSIONS)))
        # 4.9 cannot sign, so it is not registered with the other nameserver.
        wait_for_topic(by_account, "TBW102", {broker_name(NEWEST)})


# -- two nameservers ------------------------------------------------------------------------------


@pytest.mark.full
def test_clients_work_while_either_nameserver_is_down(apache: None, shells: Shells) -> None:
    names = set(map(broker_name, VERSIONS))
    with ExitStack() as stack:
        first, second = (stack.enter_context(tianzhou_namesrv()) for _ in range(2))
        both = f"{first.address};{second.address}"
        for version in VERSIONS:
            stack.enter_context(
                apache_broker(version, both, brokerName=broker_name(version), graceful=False)
            )
        for topic in ("Flow", "Between", "After"):
            create_everywhere(shells(NEWEST), (first, second), topic)
        flows = [Flow(shells(version), both) for version in VERSIONS]

        for flow in flows:
            flow.pass_messages("before")
        first.stop()
        for flow in flows:
            flow.pass_messages("between")
            assert flow.ask_for_queues("Between") == {f"{n}:{q}" for n in names for q in (0, 1)}
        stack.enter_context(tianzhou_namesrv(port=first.port))
        wait_for_topic(first, "Flow", names)
        second.stop()
        for flow in flows:
            flow.pass_messages("after")
            assert flow.ask_for_queues("After") == {f"{n}:{q}" for n in names for q in (0, 1)}
        for flow in flows:
            flow.stop()


def create_everywhere(shell: Shell, namesrvs: tuple[Server, ...], topic: str) -> None:
    arguments = ("updateTopic", "-c", CLUSTER, "-t", topic, "-r", "2", "-w", "2")
    shell.mqadmin(namesrvs[0].address, *arguments)
    for namesrv in namesrvs:
        wait_for_topic(namesrv, topic, set(map(broker_name, VERSIONS)))


class Flow:
    """A producer and a consumer of one version that always run, on brokers of both."""

    def __init__(self, shell: Shell, namesrvs: str) -> None:
        self.shell = shell
        self.name = f"flow-{shell.version[0]}"
        self.bodies: list[str] = []
        # Tags separate the messages of the two versions in one topic.
        self.tag = f"Flow{shell.version[0]}"
        shell.start_producer(self.name, namesrvs, group=self.name)
        shell.start_consumer(self.name, namesrvs, group=self.name, topic="Flow", tags=self.tag)

    def pass_messages(self, stage: str) -> None:
        """Each call of send succeeds, each body arrives once."""
        bodies = [f"{stage} {self.name} {number}" for number in range(12)]
        sent = self.shell.send(self.name, "Flow", bodies, tags=self.tag)
        assert {result["status"] for result in sent} == {"SEND_OK"}
        assert {result["brokerName"] for result in sent} == set(map(broker_name, VERSIONS))
        self.bodies += bodies
        wait_for_bodies(self.shell, self.name, self.bodies)

    def ask_for_queues(self, topic: str) -> set[str]:
        """The queues of a topic whose route this client has not queried before.

        A stock client may fail once before it detects that its nameserver is down.
        """
        failures: list[str] = []

        def query_route() -> list[str] | None:
            try:
                found: list[str] = self.shell.ask("publish_queues", name=self.name, topic=topic)
            except AssertionError as failure:
                failures.append(str(failure))
                return None
            return found

        return set(
            wait_until(query_route, f"route of {topic}", timeout_s=SOON_S, seen=lambda: failures)
        )

    def stop(self) -> None:
        self.shell.ask("stop_consumer", name=self.name)
        self.shell.ask("stop_producer", name=self.name)


# -- a broker of ours that comes ------------------------------------------------------------------


def test_a_joining_broker_copies_topics_and_groups_of_apache_brokers(
    cluster: Cluster, shells: Shells
) -> None:
    """Our broker joins Apache's cluster and copies its tables before it registers."""
    old, new = (cluster.brokers[version] for version in VERSIONS)

    def mqadmin(line: str) -> str:
        return shells(VERSIONS[0]).mqadmin(cluster.namesrv.address, *line.split())

    for line in (
        f"updateTopic -b {old.address} -t of-old -r 3 -w 5",
        f"updateTopic -b {new.address} -t of-new -r 2 -w 2 -p 4",
        f"updateSubGroup -b {old.address} -g readers -r 7",
        f"updateSubGroup -b {new.address} -g writers -r 8",
    ):
        assert "success" in mqadmin(line), line
    for topic, version in zip(("of-old", "of-new"), VERSIONS, strict=True):
        wait_for_topic(cluster.namesrv, topic, {broker_name(version)})
    with tianzhou_broker(cluster.namesrv, brokerName="ours", copyMetadataOnJoin="true") as broker:
        # It is registered now, and was complete before that.
        for topic, settings in (("of-old", '"writeQueueNums":5'), ("of-new", '"perm":4')):
            route = mqadmin(f"topicRoute -t {topic}")
            assert '"brokerName":"ours"' in route, broker.output()
            assert route.count(settings) == 2, route
        for group, times in (("readers", 7), ("writers", 8)):
            shown = mqadmin(f"getConsumerConfig -g {group}")
            assert "DefaultCluster:ours" in shown, shown
            assert f"retryMaxTimes                           =  {times}" in shown
