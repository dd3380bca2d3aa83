"""A watch: a stream of changes on a connection of its own.

It ends with an error rather than wait in silence: when the stream or the leader of its member ends,
when another request to the member fails, and when another member has become the first, as nothing
would show any more that this one hangs.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from tianzhou.errors import AuthorityError, ProtocolError
from tianzhou.ha.authority import etcd_answers as answers
from tianzhou.ha.authority.etcd_answers import Header, WatchAnswer
from tianzhou.ha.authority.etcd_connection import EtcdConnection, connection_problem
from tianzhou.ha.authority.etcd_member import Member
from tianzhou.ha.authority.http_response import ResponseDecoder
from tianzhou.ha.authority.json_documents import DocumentSplitter
from tianzhou.limits import ETCD_ANSWER_BYTES_MAX

_CHECK_S = 1.0


class Compacted(AuthorityError):
    """A watch asked for changes that etcd has forgotten: read again."""


class Watch:
    """Tells that something changed; what changed is read."""

    def __init__(
        self,
        member: Member,
        connection: EtcdConnection,
        is_first: Callable[[], bool],
        check_header: Callable[[Header], None],
    ) -> None:
        self._member = member
        self._connection = connection
        self._is_first = is_first
        self._check_header = check_header
        self._decoder: ResponseDecoder | None = None
        self._splitter = DocumentSplitter(ETCD_ANSWER_BYTES_MAX)
        self._answers: deque[WatchAnswer] = deque()
        self._forget = member.call_on_failure(connection.abort)

    async def begin(self, request: bytes) -> None:
        """Raises OSError, ProtocolError, Refusal, Compacted."""
        self._decoder = self._connection.send(request)
        while not (await self._next()).created:
            pass

    async def changed(self) -> int:
        """Wait for changes; the revision of the last one.

        Raises AuthorityError when the watch has ended, Compacted included.
        """
        try:
            while not (revision := await self._change_revision()):
                if not self._is_first():
                    raise AuthorityError("another member of etcd answers faster now")
        except (OSError, ProtocolError) as error:
            text = f"{self._member.endpoint}: the watch ended: {connection_problem(error)}"
            raise AuthorityError(text) from error
        return revision

    def close(self) -> None:
        """A cancel message would leave the stream open."""
        self._forget()
        self._connection.abort()

    async def _change_revision(self) -> int:
        """0: none within a while."""
        try:
            async with asyncio.timeout(_CHECK_S):
                events = (await self._next()).events
        except TimeoutError:
            return 0
        return max((event.kv.mod_revision for event in events), default=0)

    async def _next(self) -> WatchAnswer:
        while not self._answers:
            await self._read()
        answer = self._answers.popleft()
        if answer.compact_revision:
            raise Compacted(f"etcd has forgotten changes before {answer.compact_revision}")
        self._check_header(answer.header)
        if answer.canceled:
            raise answers.watch_refusal(answer.cancel_reason)
        return answer

    async def _read(self) -> None:
        decoder = self._decoder
        assert decoder is not None, "begin first"
        if not decoder.has_head or not (decoder.untaken_bytes or decoder.is_complete):
            await self._connection.more()
            return
        if decoder.status != 200:
            await self._refuse(decoder)
        body = decoder.take_body()
        if not body:
            raise ConnectionResetError("the stream ended")
        for document in self._splitter.feed(body):
            self._answers.append(answers.decode_streamed(WatchAnswer, document))

    async def _refuse(self, decoder: ResponseDecoder) -> None:
        while not decoder.is_complete:
            await self._connection.more()
        raise answers.refusal(decoder.status, decoder.take_body())
