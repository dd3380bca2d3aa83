"""Copies topics and consumer groups from the other brokers when a broker joins a cluster.

At its first start, with `copyMetadataOnJoin`, a broker asks the nameservers for its cluster, and
then the master of each other broker for its topics and consumer groups, before it registers: so a
topic that exists on all brokers is on this one, too, when the first client finds it. The other
brokers may be Apache's.

Not copied are system topics and groups, topics named like brokers and clusters, and retry and
dead-letter topics, which are created for their groups. Where two brokers differ, the first by name
decides. A failure is logged and does not stop the start; a later start finds topics and copies
nothing.
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
    """The cluster that a broker joins, from a nameserver."""

    own_names: frozenset[str]
    """Names of clusters and brokers; topics of these names belong to one broker each."""
    peers: dict[str, str]
    """Addresses of the other brokers by name."""


def is_new(topics: TopicTable) -> bool:
    """Whether a broker has only system topics."""
    return topics.topics.keys() <= topics.system_names


async def copy_metadata(
    client: Client,
    namesrvs: Iterable[str],
    cluster_name: str,
    broker_name: str,
    topics: TopicTable,
    groups: GroupTable,
) -> None:
    """Copy topics and groups of a cluster's brokers; their failures are logged, not raised."""
    try:
        async with asyncio.timeout(_TOTAL_TIMEOUT_S):
            cluster = await _find_cluster(client, namesrvs, cluster_name, broker_name)
            if cluster is None:
                return
            for name, address in sorted(cluster.peers.items()):
                await _copy_from(client, f"{name} at {address}", address, cluster, topics, groups)
    except TimeoutError:
        log.warning(
            "joining %s: topics and groups not copied within %.0f s", cluster_name, _TOTAL_TIMEOUT_S
        )


async def _find_cluster(
    client: Client, namesrvs: Iterable[str], cluster_name: str, broker_name: str
) -> Cluster | None:
    problem = "no nameserver is configured"
    for namesrv in namesrvs:
        try:
            info = await _request(client, namesrv, RequestCode.GET_BROKER_CLUSTER_INFO, ClusterInfo)
        except TianzhouError as e:
            problem = str(e)
            continue
        cluster = read_cluster(info, cluster_name, broker_name)
        if not cluster.peers:
            log.info("joining %s: there is no other broker to copy topics from", cluster_name)
        return cluster
    log.warning("joining %s: no topics are copied: %s", cluster_name, problem)
    return None


def read_cluster(info: ClusterInfo, cluster_name: str, broker_name: str) -> Cluster:
    """The other brokers of a cluster, each with the address of its lowest id."""
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
        their_topics = await _request(
            client, address, RequestCode.GET_ALL_TOPIC_CONFIG, TopicConfigTable
        )
        their_groups = await _request(
            client, address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, SubscriptionGroupTable
        )
    except TianzhouError as e:
        log.warning("broker %s: its topics and groups are not copied: %s", peer, e)
        return
    topic_count = add_topics(their_topics, cluster.own_names, topics)
    group_count = add_groups(their_groups, groups)
    log.info("broker %s: %d topics and %d groups copied", peer, topic_count, group_count)


def add_topics(theirs: TopicConfigTable, own_names: frozenset[str], topics: TopicTable) -> int:
    """Add the missing topics of a peer; returns how many."""
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
        log.warning("topic %s: not copied: %s", validation.shorten(name), e.remark)
        return False
    return True


def add_groups(theirs: SubscriptionGroupTable, groups: GroupTable) -> int:
    """Add the missing groups of a peer; returns how many."""
    count = 0
    for name, group in theirs.groups.items():
        if groups.get(name) is None and not is_system_group(name):
            count += groups.put(msgspec.structs.replace(group, group_name=name))
    return count


async def _request(client: Client, address: str, code: int, body_type: type[T]) -> T:
    response = await client.request(address, Command(code=code), _REQUEST_TIMEOUT_MS)
    if response.code != ResponseCode.SUCCESS:
        raise RequestError(response.code, f"{address}: {response.remark}")
    return decode(body_type, response.body)
