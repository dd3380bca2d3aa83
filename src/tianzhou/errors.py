"""Every exception that Tianzhou raises on purpose.

The tree says who has to act: `ProtocolError` the peer that sent the bytes, `RemotingError` the
network, `RequestError` the caller of one request, `StoreError` the operator of the disk,
`ConfigError` the author of a configuration. Anything else that escapes is a bug of ours.
"""


class TianzhouError(Exception):
    """Base of all; its text is written for the person who has to act on it."""


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


# -- network -----------------------------------------------------------------------------------


class RemotingError(TianzhouError):
    """Something between two programs went wrong."""


class ConnectError(RemotingError):
    """No connection could be made."""


class ConnectionClosed(RemotingError):
    """The connection ended before the answer came."""


class RequestTimeout(RemotingError):
    """No answer within the time allowed."""


class RemoteBusy(RemotingError):
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
    """The store cannot do what was asked of it."""


class ConfigError(TianzhouError):
    """A setting is wrong; the text names the file, the line and the remedy."""


class StoreClosed(StoreError):
    """The store was closed, or never opened."""


class StoreLocked(StoreError):
    """Another program has this store open."""


class StoreFull(StoreError):
    """No room: the disk is full, or fuller than the store may fill it. Reading goes on."""


class StoreReadOnly(StoreError):
    """The disk, the permissions or the way of opening forbid writing. Reading goes on."""


class StoreBroken(StoreError):
    """The disk failed to keep what it was given; nothing more is acknowledged until a restart."""


class StoreCorrupt(StoreError):
    """Files of the store contradict each other; the text says which, and what to do."""


# -- addresses -----------------------------------------------------------------------------------


class AddressError(ConnectError):
    """A network address cannot be read."""


# -- filters -----------------------------------------------------------------------------------


class FilterError(ProtocolError):
    """A filter expression cannot be understood; the text shows where it goes wrong."""
