"""Limits of what one request, one connection and one table may hold: one row for each.

A row says what is limited, the value, and what happens above it. Code that enforces a limit uses
its constant; a configurable limit is the default of the named setting. `docs/security.md`
shows the whole table: `python tools/limits_table.py` writes it, and a test compares the two.

No request may cost the event loop more than 50 ms
(`tests/integration/servers/test_request_cost.py`), so
limits of requests are based on measurements and on what stock clients send.
"""

from dataclasses import dataclass

_KIB = 1024
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One row of the table."""

    bounds: str
    """What is counted, for the first column."""
    value: int
    unit: str
    above: str
    """What happens above the limit."""
    setting: str = ""
    """The key under which it can be set; empty for a fixed limit."""


TABLE: list[Limit] = []
"""All rows, in the order of the page."""


def _limit(value: int, unit: str, bounds: str, above: str, setting: str = "") -> int:
    TABLE.append(Limit(bounds=bounds, value=value, unit=unit, above=above, setting=setting))
    return value


_REFUSED = "SYSTEM_ERROR with both figures, before the body is decoded"

# -- bodies of requests ----------------------------------------------------------------------------

FRAME_BYTES_MAX = _limit(16 * _MIB, "bytes", "a frame, as in RocketMQ", "the connection is closed")
HEADER_BYTES_MAX = _limit(
    256 * _KIB, "bytes", "the header of a request, all ext fields together",
    "SYSTEM_ERROR with both figures, before the header is decoded",
)  # fmt: skip
BODY_BYTES_MAX = _limit(
    64 * _KIB, "bytes", "the body of a request that is no message and is not named below", _REFUSED
)
CLIENT_BODY_BYTES_MAX = _limit(
    2 * _MIB, "bytes", "the body of a heartbeat, a lock, an unlock or a batch acknowledgement",
    _REFUSED,
)  # fmt: skip
SETTINGS_COUNT_MAX = _limit(
    1_000, "lines", "the lines of a change of settings", "SYSTEM_ERROR; nothing is changed"
)
SETTINGS_BODY_BYTES_MAX = _limit(
    _MIB, "bytes", "a body of settings, of one subscription group, or of a client to check",
    _REFUSED,
)  # fmt: skip
LIST_BODY_BYTES_MAX = _limit(
    2 * _MIB, "bytes", "a body that lists topics or subscription groups", _REFUSED
)
LOOSE_JSON_BYTES_MAX = _limit(
    16 * _KIB, "bytes",
    "a body that is no strict JSON (object keys, `$ref`, single quotes)",
    "SYSTEM_ERROR; strict JSON, as clients and brokers write it, is read a thousand times faster",
)  # fmt: skip
INFLATED_BYTES_MAX = _limit(
    32 * _MIB, "bytes", "a compressed registration, inflated",
    "SYSTEM_ERROR; inflating stops there",
)  # fmt: skip
REGISTERED_TOPICS_MAX = _limit(
    250_000, "topics", "the topics of a compressed registration",
    "SYSTEM_ERROR, before the first is read",
)  # fmt: skip

# -- messages --------------------------------------------------------------------------------------

ACKED_BITS_MAX = _limit(
    65_536, "bits", "the bits of all sets in one batch acknowledgement",
    "SYSTEM_ERROR; nothing of it is acknowledged",
)  # fmt: skip
PROPERTIES_BYTES_MAX = _limit(
    32_767, "bytes", "the properties of a message", "MESSAGE_ILLEGAL with both figures"
)
BATCH_MESSAGES_MAX = _limit(
    10_000, "messages", "the messages of one batch", "MESSAGE_ILLEGAL; nothing of it is stored"
)
BATCH_KEYS_MAX = _limit(
    40_000, "keys", "the keys of all messages of one batch, unique keys included",
    "MESSAGE_ILLEGAL; nothing of it is stored",
)  # fmt: skip

# -- names -----------------------------------------------------------------------------------------

TOPIC_NAME_BYTES_MAX = _limit(
    255, "bytes",
    "the name of a topic, also of one that belongs to a group (`%RETRY%group`, `%DLQ%group`, "
    "`%RETRY%group_topic`): it is the name of a folder",
    "SYSTEM_ERROR with both figures, before anything is stored",
)  # fmt: skip

# -- filters ---------------------------------------------------------------------------------------

SQL_CHARACTERS_MAX = _limit(
    64 * _KIB, "characters", "an SQL92 filter", "the subscription or pull is refused"
)
SQL_DEPTH_MAX = _limit(100, "levels", "the nesting of an SQL92 filter", "the same")
SQL_TOKENS_MAX = _limit(
    2_000, "names, values and symbols", "the names, values and symbols of an SQL92 filter",
    "the same",
)  # fmt: skip
FILTER_MS_MAX = _limit(
    5, "ms", "how long one pull or pop searches for a message that its filter accepts",
    "the response has the messages so far, and the next request continues there",
)  # fmt: skip

# -- nameserver ------------------------------------------------------------------------------------

KV_BYTES_MAX = _limit(
    2 * _MIB, "bytes", "the KV configuration of a nameserver, with 64 bytes more for each pair",
    "SYSTEM_ERROR; nothing is written", "maxKVBytes",
)  # fmt: skip

# -- /health and /metrics --------------------------------------------------------------------------

WEB_CONNECTIONS_MAX = _limit(
    256, "connections", "HTTP connections to `/health` and `/metrics` at a time",
    "the oldest that has not sent a request is closed, so that a new one is served",
)  # fmt: skip
WEB_TIMEOUT_MS = _limit(
    5_000, "ms", "sending an HTTP request and reading its response", "the connection is closed"
)

# -- HA port ---------------------------------------------------------------------------------------

HA_CONNECTIONS_MAX = _limit(
    64, "connections", "connections to the HA port of a master",
    "a new connection is closed, and logged",
)  # fmt: skip
HA_SILENT_MAX = _limit(
    16, "connections", "of these, the ones that have not sent a report (which no slaves use up)",
    "the oldest of the address that has most of them is closed",
)  # fmt: skip
HA_TOKENS_MAX = _limit(
    64, "tokens", "tokens that slaves got on the listen port and have not used",
    "the oldest becomes invalid, and its slave says hello again",
)  # fmt: skip
HA_CHANGES_MAX = _limit(
    1000, "entries", "changed topics and groups that are announced to a slave before messages",
    "the oldest are not announced; the slave has them with its next copy of the tables",
)  # fmt: skip
HA_TOKEN_MS = _limit(
    10_000, "ms", "how long such a token is valid", "the connection to the HA port is closed"
)

# -- etcd ------------------------------------------------------------------------------------------

ETCD_ANSWER_BYTES_MAX = _limit(
    8 * _MIB, "bytes", "an answer of etcd, and the unread part of a watch",
    "the connection is closed, and the next member is asked",
)  # fmt: skip
ETCD_VALUE_BYTES_MAX = _limit(
    64 * _KIB, "bytes", "the value of a key of a broker group in etcd",
    "an error that names the key; it is neither read nor written",
)  # fmt: skip
ETCD_KEYS_MAX = _limit(
    192, "keys", "keys of a broker group in etcd, foreign ones included",
    "an error that names their prefix",
)  # fmt: skip
ETCD_ENDPOINTS_MAX = _limit(
    16, "addresses", "addresses in haEtcdEndpoints", "the setting is refused"
)

# -- tables of a broker ----------------------------------------------------------------------------

_NOT_ADDED = "new entries are refused with both figures and the setting; existing ones stay valid"

TOPICS_MAX = _limit(
    100_000, "topics", "the topics of a broker that clients and administrators create, "
    "also automatically; those of groups (`%RETRY%`, `%DLQ%`) are not refused",
    _NOT_ADDED, "maxTopics",
)  # fmt: skip
GROUPS_MAX = _limit(
    50_000, "groups", "the consumer groups of a broker, also those created automatically",
    _NOT_ADDED, "maxSubscriptionGroups",
)  # fmt: skip
PRODUCER_GROUPS_MAX = _limit(
    100_000, "groups", "producer groups with a connected member", _NOT_ADDED, "maxProducerGroups"
)
GROUPS_OF_CONNECTION_MAX = _limit(
    10_000, "groups", "consumer and producer groups of one connection", "the heartbeat is refused"
)
SUBSCRIPTIONS_MAX = _limit(
    2_000_000, "subscriptions", "subscriptions of all connected consumers; one with a long "
    "expression counts several times", _NOT_ADDED, "maxSubscriptions",
)  # fmt: skip
SUBSCRIPTIONS_OF_CONNECTION_MAX = _limit(
    20_000, "subscriptions", "subscriptions of one connection, counted in the same way",
    "the heartbeat is refused",
)  # fmt: skip
PARKED_OF_CONNECTION_MAX = _limit(
    10_000, "requests", "pulls, and pops, of one connection that wait for a message; of all "
    "connections `maxParkedPulls` and `maxPopPollingSize`, long expressions counting several times",
    "a pull or pop is answered at once",
)  # fmt: skip
OFFSETS_MAX = _limit(
    2_000_000, "offsets", "committed offsets: one for each queue and group; only queues, topics "
    "and groups that exist have one", _NOT_ADDED, "maxConsumerOffsets",
)  # fmt: skip
QUEUE_LOCKS_MAX = _limit(
    500_000, "locks", "queues locked by consumers in order", _NOT_ADDED, "maxQueueLocks"
)
STRAY_LOCKS_MAX = _limit(
    10_000, "locks", "locked queues of topics and groups that the broker does not have", _NOT_ADDED
)
POPPED_QUEUES_MAX = _limit(
    500_000, "queues", "queues that groups pop, counted for each group", _NOT_ADDED,
    "maxPoppedQueues",
)  # fmt: skip
GROUP_RULES_MAX = _limit(
    100_000, "rules", "topics that are forbidden to groups, and modes (pull or pop) of groups; "
    "each kind by itself", _NOT_ADDED, "maxGroupRules",
)  # fmt: skip
STATISTICS_MAX = _limit(
    1_000_000, "counters", "counters of queues and groups, for statistics and `/metrics`",
    "further ones are counted in the sums of the broker only",
)  # fmt: skip

# -- tables of a nameserver ------------------------------------------------------------------------

NAMESRV_TOPICS_MAX = _limit(
    500_000, "topics", "topics that a nameserver knows", "the registration is refused", "maxTopics"
)
NAMESRV_ROUTES_MAX = _limit(
    5_000_000, "routes", "topics of all brokers together, a topic counted for each broker name",
    "the registration is refused", "maxRoutes",
)  # fmt: skip
NAMESRV_BROKERS_MAX = _limit(
    10_000, "brokers", "registered brokers", "the registration is refused", "maxBrokers"
)
FILTER_SERVERS_MAX = _limit(
    100, "addresses", "filter servers of one broker", "the registration is refused"
)

# -- queues ----------------------------------------------------------------------------------------

TOPIC_QUEUES_MAX = _limit(2_048, "queues", "the queues of one topic", "SYSTEM_ERROR")
SHOWN_QUEUES_MAX = _limit(
    100_000, "queues", "the queues in one response with statistics",
    "SYSTEM_ERROR: ask for fewer topics",
)  # fmt: skip
