"""Requests to etcd's v3 JSON gateway, over HTTP/1.1, to whichever member answers.

    budget     each request has a time budget. A repeatable one (read, renewal) is sent to the next
               member when the first failed, or has not answered within HEDGE_S (both may still
               answer); when all have failed it begins again, until the budget is used up
    not        a transaction is sent to another member only if it certainly had no effect; if its
    repeated   answer did not arrive, or does not rule out that it is carried out, the result is
               `NoAnswer`: it may take effect at any later time
    order      the member that answered last comes first; one that failed or was slow goes last
    stale      the members' Raft term and revision only grow: an answer to a linearizable request
               that is behind what was known when the request was sent is refused, and a term that
               is behind in any answer. Only linearizable answers raise these marks, as a member
               that is cut off raises its term all by itself
    login      with a user: the token goes into the raw `Authorization` header. On an invalid token,
               a missing user, a refused permission, or an old revision of the users, log in again
               and repeat once; a token is also dropped when a connection ends without an answer
    watch      on a connection of its own; it ends when the stream, the member's leader, or another
               request to that member fails, or when another member has become the first

Why no library: of HTTP, this needs one request per connection at a time and chunked responses
(`http_response`, sans-IO, 250 lines), and every HTTP library hides whether the request was sent,
which decides between "failed" and "unknown". aetcd and etcd3 bring grpcio (20 MB, threads of its
own); the gateway is part of every etcd from 3.4 on.
"""

import asyncio
import logging
import re
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from tianzhou.clock import Clock, steady_ms
from tianzhou.errors import AuthorityError, ProtocolError
from tianzhou.ha.authority import etcd_answers as answers
from tianzhou.ha.authority.etcd_answers import NO_LEADER, GrpcCode, Header, Refusal
from tianzhou.ha.authority.etcd_connection import EtcdStale, connection_problem
from tianzhou.ha.authority.etcd_endpoints import EtcdAccess
from tianzhou.ha.authority.etcd_member import Member, MemberHealth
from tianzhou.ha.authority.etcd_watch import Watch

log = logging.getLogger(__name__)

T = TypeVar("T")

HEDGE_S = 0.3
_PAUSE_S = 0.05
"""After the first round in which all members failed; doubled after each."""
_TOKEN_CHARACTERS_MAX = 4096


class EtcdUnreachable(AuthorityError):
    """No member answered, or all refused."""


class NoAnswer(EtcdUnreachable):
    """A transaction was sent, and how it ended is not known: it may still take effect."""


class Call(NamedTuple, Generic[T]):
    """One kind of request."""

    path: str
    decode: Callable[[bytes], T]
    is_repeatable: bool = True
    """Sending it twice does no harm."""
    is_linear: bool = True
    """Its answer is not older than anything that was answered before it was sent."""


class Answered(NamedTuple, Generic[T]):
    """An answer."""

    answer: T
    sent_ms: int
    """When the request was sent that was answered."""


class _Marks(NamedTuple):
    """The newest that linearizable answers have shown."""

    cluster_id: str = ""
    raft_term: int = 0
    revision: int = 0


class _Failure(Exception):
    """An attempt at one member failed."""

    def __init__(
        self, text: str, *, had_no_effect: bool, is_lasting: bool = False, is_late: bool = False
    ) -> None:
        super().__init__(text)
        self.had_no_effect = had_no_effect
        self.is_lasting = is_lasting
        self.is_late = is_late


_AUTHENTICATE: Call[answers.TokenAnswer] = Call(
    "auth/authenticate", partial(answers.decode, answers.TokenAnswer), is_linear=False
)
_STATUS: Call[answers.StatusAnswer] = Call(
    "maintenance/status", partial(answers.decode, answers.StatusAnswer), is_linear=False
)


class EtcdClient:
    """A client on one event loop; any number of requests at a time."""

    def __init__(self, access: EtcdAccess, clock: Clock = steady_ms) -> None:
        """Raises ConfigError for certificates that cannot be loaded. Connects when needed."""
        self._clock = clock
        self._members: list[Member] = []
        self._marks = _Marks()
        self._token: str | None = None
        """None: not logged in; empty: etcd's authentication is off."""
        self._is_closed = False
        self.use(access)

    def use(self, access: EtcdAccess) -> None:
        """Other endpoints, users or certificates from now on. Raises ConfigError."""
        is_tls = any(endpoint.is_tls for endpoint in access.endpoints)
        tls = access.tls.client_context() if is_tls else None
        for member in self._members:
            member.close()
        self._access = access
        self._token = None
        self._members = [Member(endpoint, tls) for endpoint in access.endpoints]

    def close(self) -> None:
        """Close all connections; requests fail from now on."""
        self._is_closed = True
        for member in self._members:
            member.close()

    def health(self) -> tuple[MemberHealth, ...]:
        """Of every endpoint, in the order of the setting."""
        by_endpoint = {member.endpoint: member for member in self._members}
        return tuple(by_endpoint[endpoint].health() for endpoint in self._access.endpoints)

    async def probe(self, budget_s: float) -> tuple[MemberHealth, ...]:
        """Ask every member how it is; their order stays, but for those that fail."""
        probes = (self._probe(member, budget_s) for member in tuple(self._members))
        by_endpoint = {health.endpoint: health for health in await asyncio.gather(*probes)}
        asked = (by_endpoint.get(health.endpoint, health) for health in self.health())
        return tuple(asked)

    async def _probe(self, member: Member, budget_s: float) -> MemberHealth:
        try:
            answer = (await self._attempt(member, _STATUS, b"{}", budget_s)).answer
        except _Failure as failure:
            self._on_failure(member, str(failure))
            return member.health()
        health = replace(
            member.health(),
            version=answer.version,
            is_leader=answer.leader == answer.header.member_id,
        )
        if answer.leader == "0":
            return replace(health, is_answering=False, problem=NO_LEADER)
        return replace(health, problem="; ".join(answer.errors))

    async def call(self, call: Call[T], body: Mapping[str, Any], budget_s: float) -> Answered[T]:
        """Raises AuthorityError with the problem of each member; NoAnswer see above."""
        content = msgspec.json.encode(body)
        deadline_s = _now_s() + budget_s
        pause_s = _PAUSE_S
        reasons: dict[str, _Failure] = {}
        while True:
            result = await self._round(call, content, deadline_s)
            if isinstance(result, Answered):
                return result
            _collect(result, reasons)
            is_lasting = all(failure.is_lasting for _, failure in result)
            if deadline_s - _now_s() <= pause_s or is_lasting or self._is_closed:
                raise _summary(reasons)
            await asyncio.sleep(pause_s)
            pause_s *= 2

    # -- one round over all members --------------------------------------------------------------

    async def _round(
        self, call: Call[T], content: bytes, deadline_s: float
    ) -> Answered[T] | list[tuple[Member, _Failure]]:
        if self._is_closed:
            raise EtcdUnreachable("the connection to etcd was closed here")
        if call.is_repeatable:
            return await self._hedged_round(call, content, deadline_s)
        failures: list[tuple[Member, _Failure]] = []
        members = tuple(self._members)
        for left_count, member in zip(range(len(members), 0, -1), members, strict=True):
            timeout_s = (deadline_s - _now_s()) / left_count
            try:
                return await self._attempt(member, call, content, timeout_s)
            except _Failure as failure:
                self._on_failure(member, str(failure))
                if not failure.had_no_effect:
                    raise NoAnswer(f"{member.endpoint}: {failure}") from failure
                failures.append((member, failure))
        return failures

    async def _hedged_round(
        self, call: Call[T], content: bytes, deadline_s: float
    ) -> Answered[T] | list[tuple[Member, _Failure]]:
        waiting = deque(self._members)
        hedge_s = min(HEDGE_S, (deadline_s - _now_s()) / len(waiting))
        running: dict[asyncio.Task[Answered[T]], Member] = {}
        started: list[Member] = []
        failures: list[tuple[Member, _Failure]] = []
        try:
            while waiting or running:
                left_s = max(deadline_s - _now_s(), 0.001)
                if waiting:
                    member = waiting.popleft()
                    started.append(member)
                    attempt = self._attempt(member, call, content, left_s)
                    running[asyncio.create_task(attempt)] = member
                done, _ = await asyncio.wait(
                    running,
                    timeout=hedge_s if waiting else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in [task for task in running if task in done]:
                    member = running.pop(task)
                    try:
                        answered = task.result()
                    except _Failure as failure:
                        self._on_failure(member, str(failure))
                        failures.append((member, failure))
                    else:
                        for slow in started[: started.index(member)]:
                            if slow in running.values():
                                self._on_failure(slow, "it is slower than another member")
                        return answered
        finally:
            await _cancelled(running)
        return failures

    def _on_failure(self, member: Member, problem: str) -> None:
        if member in self._members:
            self._members.remove(member)
            self._members.append(member)
        if member.failed(problem) and not self._is_closed:
            log.warning("etcd %s: %s", member.endpoint, problem)

    # -- one member ------------------------------------------------------------------------------

    async def _attempt(
        self, member: Member, call: Call[T], content: bytes, timeout_s: float
    ) -> Answered[T]:
        """Raises _Failure."""
        began_s = _now_s()
        progress = _Progress()
        work = self._logged_in(member, call, content, timeout_s, progress)
        answered = await _guarded(work, timeout_s, progress)
        if member.answered(_now_s() - began_s):
            log.info("etcd %s: answers again", member.endpoint)
        return answered

    async def _logged_in(
        self, member: Member, call: Call[T], content: bytes, timeout_s: float, progress: "_Progress"
    ) -> Answered[T]:
        """With a token where there is a user; logs in again once."""
        token = await self._login(member, timeout_s)
        try:
            return await self._exchange(member, call, content, token, timeout_s, progress)
        except Refusal as refusal:
            if not (refusal.wants_login and refusal.had_no_effect and self._access.user):
                raise
        if self._token == token:
            self._token = None
        progress.is_sent = False
        token = await self._login(member, timeout_s)
        return await self._exchange(member, call, content, token, timeout_s, progress)

    async def _login(self, member: Member, timeout_s: float) -> str:
        access = self._access
        if not access.user:
            return ""
        if self._token is None:
            body = msgspec.json.encode({"name": access.user, "password": access.password})
            try:
                answered = await self._exchange(
                    member, _AUTHENTICATE, body, "", timeout_s, _Progress()
                )
            except Refusal as refusal:
                if refusal.code != GrpcCode.FAILED_PRECONDITION:
                    raise
                log.warning(
                    "etcd %s: haEtcdUser is set, but etcd's authentication is off: every program "
                    "that reaches etcd can switch masters", member.endpoint,
                )  # fmt: skip
                self._token = ""
            else:
                self._token = _checked_token(answered.answer.token)
        return self._token

    async def _exchange(
        self,
        member: Member,
        call: Call[T],
        content: bytes,
        token: str,
        timeout_s: float,
        progress: "_Progress",
    ) -> Answered[T]:
        """One request and its answer. Raises OSError, ProtocolError, Refusal."""
        connection = await member.connection(timeout_s)
        try:
            marks, sent_ms = self._marks, self._clock()
            response = await connection.request(_request(member, call.path, content, token))
        except BaseException as error:
            if isinstance(error, (ConnectionError, ProtocolError)) and token == self._token:
                self._token = None  # a bad token may end the connection without an answer
            connection.abort()
            raise
        finally:
            progress.is_sent = connection.has_sent
        member.release(connection)
        body = response.take_body()
        if response.status != 200:
            raise answers.refusal(response.status, body)
        answer = call.decode(body)
        self._check_header(getattr(answer, "header", None), marks, is_linear=call.is_linear)
        return Answered(answer, sent_ms)

    def _check_header(self, header: Header | None, marks: _Marks, *, is_linear: bool) -> None:
        """Refuses a member that is behind, and remembers the newest."""
        if header is None or not header.cluster_id:
            raise ProtocolError("an answer without etcd's header")
        if marks.cluster_id not in ("", header.cluster_id):
            if self._marks.cluster_id != header.cluster_id:
                log.warning(
                    "etcd: the cluster id changed from %s to %s: etcd was set up anew, or "
                    "haEtcdEndpoints names members of two clusters",
                    marks.cluster_id, header.cluster_id,
                )  # fmt: skip
                self._marks = _Marks(header.cluster_id)
            marks = _Marks(header.cluster_id)
        if header.raft_term < marks.raft_term or (is_linear and header.revision < marks.revision):
            raise EtcdStale(
                f"a stale answer (Raft term {header.raft_term}, revision {header.revision}, after "
                f"{marks.raft_term} and {marks.revision}): the member is cut off from the others, "
                "or etcd was emptied or restored from a backup while this broker was running"
            )
        if is_linear:
            newest = self._marks
            self._marks = _Marks(
                header.cluster_id,
                max(newest.raft_term, header.raft_term),
                max(newest.revision, header.revision),
            )

    # -- watch -----------------------------------------------------------------------------------

    async def watch(self, create: Mapping[str, Any], budget_s: float) -> Watch:
        """A watch that has begun. Raises AuthorityError, Compacted included."""
        content = msgspec.json.encode({"create_request": create})
        reasons: dict[str, _Failure] = {}
        deadline_s = _now_s() + budget_s
        members = tuple(self._members)
        for left_count, member in zip(range(len(members), 0, -1), members, strict=True):
            timeout_s = (deadline_s - _now_s()) / left_count
            begin = self._begin_watch(member, content, timeout_s)
            try:
                return await _guarded(begin, timeout_s, _Progress())
            except _Failure as failure:
                self._on_failure(member, str(failure))
                _collect([(member, failure)], reasons)
        raise _summary(reasons)

    async def _begin_watch(self, member: Member, content: bytes, timeout_s: float) -> Watch:
        token = await self._login(member, timeout_s)
        connection = await member.connection(timeout_s)
        watch = Watch(member, connection, lambda: self._members[0] is member, self._check_term)
        try:
            await watch.begin(_request(member, "watch", content, token))
        except BaseException as error:
            watch.close()
            if isinstance(error, Refusal) and error.wants_login:
                self._token = None
            raise
        return watch

    def _check_term(self, header: Header) -> None:
        self._check_header(header, self._marks._replace(revision=0), is_linear=False)


class _Progress:
    """How far an attempt has come."""

    __slots__ = ("is_sent",)

    def __init__(self) -> None:
        self.is_sent = False


async def _guarded(work: Awaitable[T], timeout_s: float, progress: _Progress) -> T:
    """The result of one attempt. Raises _Failure, and Compacted."""
    try:
        async with asyncio.timeout(max(timeout_s, 0.001)):
            return await work
    except TimeoutError as error:
        text = f"no answer within {timeout_s * 1000:.0f} ms"
        raise _Failure(text, had_no_effect=not progress.is_sent, is_late=True) from error
    except Refusal as error:
        raise _Failure(
            str(error),
            had_no_effect=error.had_no_effect or not progress.is_sent,
            is_lasting=error.is_lasting,
        ) from error
    except (OSError, ProtocolError) as error:
        raise _Failure(
            connection_problem(error),
            had_no_effect=not progress.is_sent,
            is_lasting=isinstance(error, (ProtocolError, ssl.SSLError)),
        ) from error


async def _cancelled(tasks: Collection[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it


def _request(member: Member, path: str, content: bytes, token: str) -> bytes:
    """`hasleader` lets a member refuse at once if it has no leader, and end watches."""
    authorization = f"Authorization: {token}\r\n" if token else ""
    head = (
        f"POST /v3/{path} HTTP/1.1\r\nHost: {member.endpoint.authority}\r\n"
        "Content-Type: application/json\r\nGrpc-Metadata-hasleader: true\r\n"
        f"{authorization}Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def _checked_token(token: str) -> str:
    """A token becomes a line of the request."""
    if not token or len(token) > _TOKEN_CHARACTERS_MAX or not re.fullmatch(r"[!-~]+", token):
        raise ProtocolError(f"a token of {len(token)} characters that is no token")
    return token


def _collect(failures: Iterable[tuple[Member, _Failure]], reasons: dict[str, _Failure]) -> None:
    """The last reason of each member; one that is late for lack of time says less than others."""
    for member, failure in failures:
        endpoint = str(member.endpoint)
        if endpoint not in reasons or not failure.is_late:
            reasons[endpoint] = failure


def _summary(reasons: Mapping[str, _Failure]) -> EtcdUnreachable:
    problems = "; ".join(f"{endpoint}: {failure}" for endpoint, failure in reasons.items())
    return EtcdUnreachable(f"etcd cannot be used: {problems or 'no time left'}")


def _now_s() -> float:
    return asyncio.get_running_loop().time()
