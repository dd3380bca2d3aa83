"""Topic configuration and its versions, lists of topics, KV tables."""

import re
from functools import lru_cache

from msgspec import field

from tianzhou.errors import BodyError
from tianzhou.protocol import fastjson
from tianzhou.protocol.bodies.codec import Body, decode
from tianzhou.protocol.bodies.route import TopicQueueMappingDetail, TopicQueueMappingInfo
from tianzhou.protocol.integers import Int32, Int64

SINGLE_TAG = "SINGLE_TAG"
MULTI_TAG = "MULTI_TAG"


class DataVersion(Body, frozen=True, kw_only=True):
    """Version of a table: two sides hold the same table if their versions are equal."""

    timestamp: Int64 = 0
    counter: Int64 = 0
    state_version: Int64 | None = None
    """Epoch of the broker that made the change (5.x)."""


class TopicConfig(Body, frozen=True, kw_only=True):
    """One topic on one broker."""

    topic_name: str | None = None
    read_queue_count: Int32 = field(default=16, name="readQueueNums")
    write_queue_count: Int32 = field(default=16, name="writeQueueNums")
    perm: Int32 = 6
    filter_type: str = field(default=SINGLE_TAG, name="topicFilterType")
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: dict[str, str] | None = None
    """Attributes such as message.type (5.x)."""


class TopicConfigTable(Body, frozen=True, kw_only=True):
    """All topics of a broker: response to GET_ALL_TOPIC_CONFIG and part of a registration."""

    topics: dict[str, TopicConfig] = field(default={}, name="topicConfigTable")
    data_version: DataVersion = field(default_factory=DataVersion)
    mapping_infos: dict[str, TopicQueueMappingInfo] | None = field(
        default=None, name="topicQueueMappingInfoMap"
    )
    mapping_details: dict[str, TopicQueueMappingDetail] | None = field(
        default=None, name="topicQueueMappingDetailMap"
    )
    mapping_data_version: DataVersion | None = None


class TopicConfigAndMapping(TopicConfig, frozen=True, kw_only=True):
    """Response to GET_TOPIC_CONFIG (5.x)."""

    mapping_detail: TopicQueueMappingDetail | None = None


class CreateTopicListBody(Body, frozen=True, kw_only=True):
    """Body of UPDATE_AND_CREATE_TOPIC_LIST (5.3)."""

    topics: list[TopicConfig] | None = field(default=None, name="topicConfigList")


class TopicList(Body, frozen=True, kw_only=True):
    """Names of topics, sometimes with the address of the broker that was asked."""

    topics: list[str] = field(default=[], name="topicList")
    broker_addr: str | None = None


class KVTable(Body, frozen=True, kw_only=True):
    """Any names and values: KV configuration, run-time information of a broker."""

    table: dict[str, str] = field(default={})


# -- the string form of a topic -------------------------------------------------------------------


def format_topic(config: TopicConfig) -> str:
    """One line of the binary registration, "name reads writes perm filterType".

    5.x adds the attributes as a JSON object; it also writes the empty one.
    """
    line = (
        f"{config.topic_name} {config.read_queue_count} {config.write_queue_count} {config.perm} "
        f"{config.filter_type}"
    )
    if config.attributes is None:
        return line
    return f"{line} {fastjson.dumps(config.attributes, standard=False).decode()}"


_SETTINGS = re.compile(
    r"(-?[0-9]{1,9}) (-?[0-9]{1,9}) (-?[0-9]{1,9}) (\w+)(?: (.*))?", re.ASCII | re.DOTALL
)


def parse_topic(line: str) -> TopicConfig:
    """The topic of such a line. Raises BodyError."""
    name, _, settings = line.partition(" ")
    read_count, write_count, perm, filter_type, attributes = _parse_settings(settings)
    return TopicConfig(
        topic_name=name,
        read_queue_count=read_count,
        write_queue_count=write_count,
        perm=perm,
        filter_type=filter_type,
        attributes=attributes,
    )


@lru_cache(maxsize=256)
def _parse_settings(settings: str) -> tuple[int, int, int, str, dict[str, str] | None]:
    """What follows the name. Most topics of a broker have the same settings, hence the cache."""
    found = _SETTINGS.fullmatch(settings)
    if found is None:
        raise BodyError(
            f"topic settings {settings[:60]!r} cannot be read, "
            "'readQueues writeQueues perm filterType' is expected"
        )
    read_count, write_count, perm, filter_type, attributes = found.groups()
    return (
        int(read_count),
        int(write_count),
        int(perm),
        filter_type,
        decode(dict[str, str], attributes.encode()) if attributes else None,
    )
