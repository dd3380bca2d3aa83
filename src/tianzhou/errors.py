"""All exceptions that Tianzhou raises deliberately; any other exception is a bug.

The base class names the cause: `ProtocolError` the bytes of a peer, `RemotingError` the network,
`RequestError` one request, `StoreError` the disk, `ConfigError` the configuration.
"""


class TianzhouError(Exception):
    """Base class; the text says what happened and what to do.

    The flags determine what a client does next; see `tianzhou.client.connection.retry_policy`.
    """

    retriable = False
    """Whether the same call may succeed later."""
    nothing_stored = False
    """Whether the failed request certainly had no effect, so that a retry cannot duplicate it."""
    stale_route = False
    """Whether the cached route of the topic may be out of date."""

    def __init_subclass__(cls, **flags: bool) -> None:
        """A subclass states its flags beside its bases: `class X(Y, retriable=True)`."""
        super().__init_subclass__()
        for name, value in flags.items():
            if not isinstance(getattr(cls, name, None), bool):
                raise TypeError(f"{cls.__name__}: there is no flag {name}")
            setattr(cls, name, value)


# -- bytes -------------------------------------------------------------------------------------


class ProtocolError(TianzhouError):
    """Bytes that do not follow RocketMQ's formats."""


class FrameError(ProtocolError):
    """The length prefix of a frame is impossible; nothing after it on the stream can be trusted."""


class HeaderError(ProtocolError):
    """The header inside a well-delimited frame cannot be read; the next frame can."""


class FieldError(HeaderError):
    """A header field is missing or has a value of the wrong kind."""


class RecordError(ProtocolError):
    """A message record (on disk, in a pull reply or in a batch) is damaged."""


class BodyError(ProtocolError):
    """A body (JSON, compressed or binary) cannot be read."""


class ReplicationError(ProtocolError):
    """Master and slave contradict each other: frames, log offsets, epochs or file sizes."""


class AuthorityError(TianzhouError, retriable=True):
    """The authority of a replication group (etcd) is out of reach, refuses, or has bad content."""


class IdentityHeld(AuthorityError):
    """Another process is alive under the id of this one: an earlier one, or a copy of its disk."""


# -- network -----------------------------------------------------------------------------------


class RemotingError(TianzhouError, retriable=True, stale_route=True):
    """A connection could not be made, was lost, or brought no response in time."""


class ConnectError(RemotingError, nothing_stored=True):
    """No connection could be made."""


class NameserverUnavailable(ConnectError):
    """None of the nameservers could be connected to."""


class ConnectionClosed(RemotingError):
    """The connection ended before the response arrived."""


class RequestTimeout(RemotingError):
    """No response within the time-out."""


class RemoteBusy(RemotingError, nothing_stored=True):
    """Too many requests are already in flight."""


# -- requests ----------------------------------------------------------------------------------


class RequestError(TianzhouError):
    """A request is answered with `code` and `remark` instead of a result.

    Handlers raise it; the dispatcher of the server turns it into the response. A client raises it
    when it receives such a response.
    """

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"{remark} (response code {code})")
        self.code = code
        self.remark = remark


# -- disk and configuration --------------------------------------------------------------------


class StoreError(TianzhouError):
    """An operation of the store failed or is not possible."""


class WritesRefused(StoreError):
    """The broker lets nothing be stored now, although the store could; `code` is the response."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class ConfigError(TianzhouError):
    """A setting is wrong; the text names the file, the line and the remedy."""


class SettingRefused(ConfigError):
    """The setting cannot be changed by this request, whatever the value."""


class StoreClosed(StoreError):
    """The store was closed, or never opened."""


class StoreLocked(StoreError):
    """Another program has this store open."""


class QueueNameInvalid(StoreError, RecordError):
    """The name of the queue cannot be that of a folder, so that it cannot store messages."""


class StoreFull(StoreError):
    """The disk is full, or fuller than the limit of the store. Reading continues."""


class StoreReadOnly(StoreError):
    """The disk, the permissions or the open mode forbid writing. Reading continues."""


class StoreBroken(StoreError):
    """A write or flush failed; nothing more is acknowledged until a restart."""


class TruncationRefused(StoreError):
    """The log may not be cut there; nothing was changed."""


class StoreCorrupt(StoreError):
    """Files of the store contradict each other; the text says which, and what to do."""


# -- addresses -----------------------------------------------------------------------------------


class AddressError(ConnectError, retriable=False):
    """A network address cannot be read."""


# -- filters -----------------------------------------------------------------------------------


class FilterError(ProtocolError):
    """A filter expression cannot be understood; the text shows where it goes wrong."""


# -- the client ----------------------------------------------------------------------------------


class ClientError(TianzhouError):
    """An operation of a client failed or is not possible."""


class ClientClosed(ClientError):
    """The producer or consumer was not started, or has been closed."""


class MessageRefused(ClientError):
    """A message that every broker would reject; it was not sent."""


class RouteNotFound(ClientError, retriable=True, stale_route=True):
    """No broker has the topic, or none that may be written to or read from."""


class BrokersUnavailable(RouteNotFound, nothing_stored=True):
    """No broker is registered, or the master of the queue is not; it may come back."""


class NotANameserver(ClientError, ConfigError):
    """The given address of a nameserver belongs to another server."""


class SendError(ClientError):
    """A message was not stored, or may not be; the cause is the error of the last attempt."""

    def __init__(self, text: str, *, try_count: int, retriable: bool) -> None:
        super().__init__(text)
        self.try_count = try_count
        self.retriable = retriable


class SendTimeout(SendError):
    """The time-out of a send has passed; the message may be stored."""


class SendManyError(SendError):
    """Some of many messages were not stored; `outcomes` has a result or an error for each."""

    def __init__(self, text: str, *, outcomes: list[object], retriable: bool) -> None:
        super().__init__(text, try_count=1, retriable=retriable)
        self.outcomes = outcomes


class HandleExpired(ClientError):
    """The invisible time of a popped message is over: it is delivered again."""


class AckManyError(ClientError):
    """Some of many messages were not acknowledged; `outcomes` has an error or None for each."""

    def __init__(self, text: str, *, outcomes: list[TianzhouError | None]) -> None:
        super().__init__(text)
        self.outcomes = outcomes
        self.retriable = all(each.retriable for each in outcomes if each is not None)


class TokenBusy(ClientError, retriable=True):
    """Another consumer is handling this message; retry later."""


class ReplyTimeout(ClientError, retriable=True):
    """No reply to a request arrived within the time-out."""


# -- error responses ---------------------------------------------------------------------------


class BrokerError(RequestError):
    """A broker or nameserver responded with an error; the text names the server and the request.

    The subclasses stand for response codes that a client handles specially.
    """

    other_broker_may_succeed = False
    """Whether a send is worth trying on another broker."""

    def __init__(self, code: int, remark: str, *, subject: str) -> None:
        super().__init__(code, remark)
        self.args = (f"{subject}: {remark} (response code {code})",)
        self.subject = subject


class BrokerFailed(BrokerError, retriable=True, other_broker_may_succeed=True):
    """SYSTEM_ERROR: the broker failed to handle the request."""


class BrokerBusy(BrokerError, retriable=True, nothing_stored=True, other_broker_may_succeed=True):
    """SYSTEM_BUSY: the broker is overloaded."""


class BrokerNotServing(BrokerBusy, stale_route=True):
    """SERVICE_NOT_AVAILABLE: the broker is starting or stopping, its disk is full, or it is a slave
    now."""


class BrokerLeaving(BrokerBusy, stale_route=True):
    """GO_AWAY: the broker stops and asks its clients to use another one."""


class FlowControlled(BrokerError, retriable=True):
    """FLOW_CONTROL: the broker limits the rate of this request."""


class PermissionDenied(BrokerError, stale_route=True, other_broker_may_succeed=True):
    """NO_PERMISSION: the account, the topic or the broker does not permit the request."""


class TopicNotFound(BrokerError, retriable=True, stale_route=True, other_broker_may_succeed=True):
    """TOPIC_NOT_EXIST: the broker does not have the topic."""


class QueueNotFound(BrokerError, retriable=True, stale_route=True, other_broker_may_succeed=True):
    """The broker has the topic, but not this queue: the route is older than the topic."""


class NotQueueLeader(BrokerError, stale_route=True):
    """NOT_LEADER_FOR_QUEUE: another broker leads the queue."""


class WrongUnit(BrokerError, other_broker_may_succeed=True):
    """NO_BUYER_ID, NOT_IN_CURRENT_UNIT: the message belongs to another unit (region)."""


class NotSubscribed(BrokerError):
    """SUBSCRIPTION_NOT_EXIST, SUBSCRIPTION_NOT_LATEST: the broker lacks the newest heartbeat."""


class ReplyUndeliverable(BrokerError):
    """The client that sent a request no longer waits for the reply."""


# -- administration ----------------------------------------------------------------------------


class TargetError(TianzhouError):
    """The target of a command does not exist; the text names existing ones."""


# -- the console -------------------------------------------------------------------------------


class DatabaseUnavailable(TianzhouError, retriable=True):
    """The database of the console does not answer."""


# -- pipelines ---------------------------------------------------------------------------------


class DataLost(TianzhouError):
    """Messages that a pipeline must read were deleted; the text names queues and offsets."""


class PipelineError(TianzhouError):
    """A Spark job failed; the text has the reason, Spark's log the details."""
