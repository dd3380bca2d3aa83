"""A broker that joins a cluster takes over what the cluster's other brokers serve.

At its first start, with `copyMetadataOnJoin`, it asks the nameservers for its cluster, and then the
master of each other broker for its topics and consumer groups, before it registers: so a topic that
was made on all brokers is on this one, too, when the first client finds it. Peers may be Apache's.

What every broker has of its own is left out: system topics and groups, the topics named like
brokers and clusters, and the retry and dead-letter topics, which come with their groups. Where two
peers differ, the first by name decides. Nothing here stops a start; what could not be fetched is
logged, and a later start finds topics and leaves them alone.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import msgspec

from tianzhou.broker import validation
from tianzhou.broker.tables.groups import GroupTable, is_system_group
from tianzhou.broker.tables.topics import TopicTable
from tianzhou.errors import RequestError, TianzhouError
from tianzhou.names import (
    DLQ_TOPIC_PREFIX,
    REPLY_TOPIC_SUFFIX,
    RETRY_TOPIC_PREFIX,
    is_system_topic,
)
from tianzhou.protocol.bodies import decode
from tianzhou.protocol.bodies.groups import SubscriptionGroupTable
from tianzhou.protocol.bodies.route import ClusterInfo
from tianzhou.protocol.bodies.topics import TopicConfigTable
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.client import Client

log = logging.getLogger(__name__)

_REQUEST_TIMEOUT_MS = 5_000
_TOTAL_TIMEOUT_S = 30.0

T = TypeVar("T")


class Cluster(NamedTuple):
    """What the nameservers know of a cluster that a broker joins."""

    own_names: frozenset[str]
    """Names of clusters and brokers; topics of these names belong to one broker each."""
    peers: dict[str, str]
    """Addresses of the other brokers by name."""


def is_new(topics: TopicTable) -> bool:
    """Whether a broker has no topics but those that every broker has."""
    return topics.topics.keys() <= topics.system_names


async def copy_metadata(
    client: Client,
    namesrvs: Iterable[str],
    cluster_name: str,
    broker_name: str,
    topics: TopicTable,
    groups: GroupTable,
) -> None:
    """Take over topics and groups of a cluster's brokers; never raises for what others do."""
    try:
        async with asyncio.timeout(_TOTAL_TIMEOUT_S):
            cluster = await _find_cluster(client, namesrvs, cluster_name, broker_name)
            if cluster is None:
                return
            for name, address in sorted(cluster.peers.items()):
                await _copy_from(client, f"{name} at {address}", address, cluster, topics, groups)
    except TimeoutError:
        log.warning("joining %s: not done within %.0f s", cluster_name, _TOTAL_TIMEOUT_S)


async def _find_cluster(
    client: Client, namesrvs: Iterable[str], cluster_name: str, broker_name: str
) -> Cluster | None:
    problem = "no nameserver is configured"
    for namesrv in namesrvs:
        try:
            found = await _ask(client, namesrv, RequestCode.GET_BROKER_CLUSTER_INFO, ClusterInfo)
        except TianzhouError as e:
            problem = str(e)
            continue
        cluster = read_cluster(found, cluster_name, broker_name)
        if not cluster.peers:
            log.info("joining %s: there is no other broker to take topics from", cluster_name)
        return cluster
    log.warning("joining %s: no topics are taken over: %s", cluster_name, problem)
    return None


def read_cluster(info: ClusterInfo, cluster_name: str, broker_name: str) -> Cluster:
    """The other brokers of a cluster, each by its member of lowest id."""
    own_names = {*info.clusters, *info.brokers, cluster_name, broker_name}
    peers: dict[str, str] = {}
    for name in info.clusters.get(cluster_name, ()):
        data = info.brokers.get(name)
        if name != broker_name and data is not None and data.addresses:
            peers[name] = data.addresses[min(data.addresses)]
    return Cluster(frozenset(own_names), peers)


async def _copy_from(
    client: Client,
    peer: str,
    address: str,
    cluster: Cluster,
    topics: TopicTable,
    groups: GroupTable,
) -> None:
    try:
        their_topics = await _ask(
            client, address, RequestCode.GET_ALL_TOPIC_CONFIG, TopicConfigTable
        )
        their_groups = await _ask(
            client, address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, SubscriptionGroupTable
        )
    except TianzhouError as e:
        log.warning("broker %s: its topics and groups are not taken over: %s", peer, e)
        return
    topic_count = add_topics(their_topics, cluster.own_names, topics)
    group_count = add_groups(their_groups, groups)
    log.info("broker %s: %d topics and %d groups taken over", peer, topic_count, group_count)


def add_topics(theirs: TopicConfigTable, own_names: frozenset[str], topics: TopicTable) -> int:
    """Add the topics of a peer that are not there yet; returns how many."""
    count = 0
    for name, topic in theirs.topics.items():
        if topics.get(name) is None and _is_common(name, own_names) and _is_legal_topic(name):
            count += topics.put(msgspec.structs.replace(topic, topic_name=name))
    return count


def _is_common(name: str, own_names: frozenset[str]) -> bool:
    return not (
        is_system_topic(name)
        or name in own_names
        or name.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))
        or name.removesuffix(REPLY_TOPIC_SUFFIX) in own_names
    )


def _is_legal_topic(name: str) -> bool:
    try:
        validation.check_topic_name(name)
    except RequestError as e:
        log.warning("topic %s: not taken over: %s", validation.shorten(name), e.remark)
        return False
    return True


def add_groups(theirs: SubscriptionGroupTable, groups: GroupTable) -> int:
    """Add the groups of a peer that are not there yet; returns how many."""
    count = 0
    for name, group in theirs.groups.items():
        if groups.get(name) is None and not is_system_group(name):
            count += groups.put(msgspec.structs.replace(group, group_name=name))
    return count


async def _ask(client: Client, address: str, code: int, body_type: type[T]) -> T:
    answer = await client.request(address, Command(code=code), _REQUEST_TIMEOUT_MS)
    if answer.code != ResponseCode.SUCCESS:
        raise RequestError(answer.code, f"{address}: {answer.remark}")
    return decode(body_type, answer.body)
