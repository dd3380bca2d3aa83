"""One connection to a member of etcd: a request, its response, then the next request.

The connection is used for another request only if the response was complete and the server keeps it
open; a request that is cancelled or fails aborts it. TCP notices a peer that is gone within
`VANISHED_MS`; a peer that hangs is noticed by the time-outs of the requests.
"""

import asyncio
import ssl
from functools import partial
from typing import cast

from tianzhou.errors import ProtocolError
from tianzhou.ha.authority.http_response import ResponseDecoder
from tianzhou.limits import ETCD_ANSWER_BYTES_MAX
from tianzhou.remoting import sockets
from tianzhou.remoting.limits import Limits

VANISHED_MS = 4_000
_LIMITS = Limits(vanished_ms=VANISHED_MS)


class EtcdStale(ProtocolError):
    """An answer that is older than one before: the member is behind, or etcd was set up anew."""


class EtcdConnection(asyncio.Protocol):
    """Requests raise OSError, or ProtocolError for what is no HTTP response."""

    def __init__(self, *, is_tls: bool) -> None:
        self._is_tls = is_tls
        self._has_answered = False
        self._transport: asyncio.Transport | None = None
        self._decoder: ResponseDecoder | None = None
        """Of the response that is expected or being read; None while idle."""
        self._change: asyncio.Future[None] | None = None
        self._error: OSError | ProtocolError | None = None
        self.idle_since_s = 0.0
        self.has_sent = False
        """Bytes of the present request were handed to the system: the peer may act on them."""

    @property
    def is_usable(self) -> bool:
        """For another request, as far as is known."""
        return self._error is None and self._decoder is None

    async def request(self, request: bytes) -> ResponseDecoder:
        """Send a request, and read the whole response."""
        decoder = self.send(request, ETCD_ANSWER_BYTES_MAX)
        while not decoder.is_complete:
            await self.more()
        self._has_answered = True
        if decoder.is_reusable:
            self._decoder = None
        return decoder

    def send(self, request: bytes, body_bytes_max: int | None = None) -> ResponseDecoder:
        """Send a request; the decoder gets the response as it arrives.

        Without a limit the body is a stream, and the caller takes it from the decoder.
        """
        assert self._decoder is None, "one request at a time"
        if self._error is not None or self._transport is None:
            raise self._error or ConnectionResetError("the connection is closed")
        self._decoder = ResponseDecoder(body_bytes_max)
        self.has_sent = True
        self._transport.write(request)
        return self._decoder

    async def more(self) -> None:
        """Wait until more of the response has arrived."""
        if self._error is not None:
            raise self._error
        self._change = asyncio.get_running_loop().create_future()
        try:
            await self._change
        finally:
            self._change = None

    def abort(self) -> None:
        """Close at once; a request that waits gets an error."""
        self._fail(ConnectionAbortedError("the connection was closed here"))

    def _wake(self) -> None:
        if self._change is not None and not self._change.done():
            self._change.set_result(None)

    def _fail(self, error: OSError | ProtocolError) -> None:
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    # -- called by the event loop ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected, TLS included."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of the response; without a request they could become the answer of the next."""
        decoder = self._decoder
        if self._error is not None:
            return
        if decoder is None:
            self._fail(ProtocolError(f"no HTTP response, but bytes unasked: {data[:80]!r}"))
            return
        try:
            decoder.feed(data)
        except ProtocolError as error:
            self._fail(error)
            return
        if decoder.untaken_bytes > ETCD_ANSWER_BYTES_MAX:
            self._fail(ProtocolError(f"an answer of over {ETCD_ANSWER_BYTES_MAX} bytes"))
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed by the peer, by the network, or here."""
        decoder = self._decoder
        if exc is None and decoder is not None and decoder.has_head and self._error is None:
            try:
                decoder.feed_end()
            except ProtocolError as error:
                self._fail(ConnectionResetError(str(error)))
        if isinstance(exc, TimeoutError):
            # Not as TimeoutError, which is that of the request to its callers.
            exc = ConnectionResetError(f"nothing was acknowledged for {VANISHED_MS // 1000} s")
        if isinstance(exc, OSError) and not isinstance(exc, ConnectionError):
            self._fail(exc)
        text = "the connection was closed before the answer"
        if not (self._has_answered or self._is_tls):
            text += ": it is not etcd, or wants TLS: then write https:// in haEtcdEndpoints"
        self._fail(ConnectionResetError(text))


async def connect(
    address: str, port: int, tls: ssl.SSLContext | None, server_name: str, timeout_s: float
) -> EtcdConnection:
    """Connect to an IP address. Raises OSError, ssl.SSLError included."""
    sock = await sockets.connected(address, port, timeout_s, _LIMITS)
    try:
        _, connection = await asyncio.get_running_loop().create_connection(
            partial(EtcdConnection, is_tls=tls is not None),
            sock=sock,
            ssl=tls,
            server_hostname=server_name if tls else None,
        )
    except ConnectionError as error:
        sock.close()
        raise ConnectionResetError(
            "the connection was closed in the TLS handshake: if etcd does not speak TLS, write "
            "http:// in haEtcdEndpoints"
        ) from error
    except BaseException:
        sock.close()
        raise
    return connection


def connection_problem(error: OSError | ProtocolError) -> str:
    """The text of an error: what happened, why, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is refused: {error.verify_message}: correct haEtcdCaFile, or the "
            "names in the certificate"
        )
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({_reason(error)}): {_tls_hint(error)}"
    if isinstance(error, EtcdStale):
        return str(error)
    if isinstance(error, ProtocolError):
        return f"{error}: is the port etcd's client port, and http or https right?"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nothing listens there"
    return error.strerror or str(error) or type(error).__name__


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


def _tls_hint(error: ssl.SSLError) -> str:
    reason = error.reason or ""
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER" in reason:
        return "the port speaks no TLS: write http:// in haEtcdEndpoints"
    if "CERTIFICATE_REQUIRED" in reason or "BAD_CERTIFICATE" in reason or "UNKNOWN_CA" in reason:
        return "etcd wants another client certificate: set haEtcdCertFile and haEtcdKeyFile"
    return "compare the TLS settings of etcd with haEtcdCaFile, haEtcdCertFile and haEtcdKeyFile"
