"""Handling each message once, though brokers deliver at least once.

A message has a token, by default its business key. The token is written as a unique row in the same
database transaction as the work itself, so either both are there or neither. A cache in front of
the database answers for the duplicates that come soon, which is most of them.

    once = Once("order-clerks", engine.begin)

    @once.handler
    def handle(message, transaction):         # called once per token
        transaction.execute(...)

    consumer.subscribe("orders", handle)

    cache says "seen"  -> nothing to do
    row is there       -> nothing to do, and the cache learns it
    row is new         -> the work, the commit, then the cache learns it

The cache is updated after the commit: a token cached too early would lose the message if the
commit failed. For work without a database there is `RedisOnce`, which can promise less.
"""

import logging
import threading
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from functools import wraps
from typing import Any, Generic, Protocol, TypedDict, TypeVar, Unpack

from tianzhou.client.database import sql
from tianzhou.client.message import ReceivedMessage
from tianzhou.clock import Clock, wall_ms
from tianzhou.errors import TokenBusy

log = logging.getLogger(__name__)

TABLE = "tianzhou_tokens"
KEEP = timedelta(days=7)
"""Longer than the longest way of a message through retries, and than the log keeps it."""
_PURGE_EVERY_MS = 10 * 60 * 1000
_PURGE_ROWS = 10_000

TokenOf = Callable[[ReceivedMessage], str]


def by_key(message: ReceivedMessage) -> str:
    """The business key; the id that the producer gave, for messages without a key."""
    return message.key or message.msg_id


# -- caches ----------------------------------------------------------------------------------------


class TokenCache(Protocol):
    """Remembers tokens for some time; may forget any of them, must not invent one."""

    def has(self, token: str) -> bool: ...

    def add(self, token: str) -> None: ...


class RecentTokens:
    """The last tokens of this process, in memory. Safe to use from several threads."""

    def __init__(self, count_max: int = 100_000) -> None:
        if count_max < 1:
            raise ValueError(f"count_max is {count_max}, at least 1 is needed")
        self._count_max = count_max
        self._tokens: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def has(self, token: str) -> bool:
        return token in self._tokens

    def add(self, token: str) -> None:
        with self._lock:
            self._tokens[token] = None
            self._tokens.move_to_end(token)
            if len(self._tokens) > self._count_max:
                self._tokens.popitem(last=False)


class RedisTokens:
    """Tokens of all processes, in Redis. `client` is a redis.Redis.

    When Redis is away the database decides alone, and the log says so.
    """

    def __init__(self, client: Any, prefix: str = "tianzhou:", keep: timedelta = KEEP) -> None:  # noqa: ANN401 - any redis client
        self._client = client
        self._prefix = prefix
        self._keep_ms = round(keep / timedelta(milliseconds=1))

    def has(self, token: str) -> bool:
        try:
            return bool(self._client.exists(self._prefix + token))
        except Exception as e:  # noqa: BLE001 - whatever is wrong with a cache, the database knows
            log.warning("cache of tokens: Redis read failed: %s", e)
            return False

    def add(self, token: str) -> None:
        try:
            self._client.set(self._prefix + token, b"1", px=self._keep_ms)
        except Exception as e:  # noqa: BLE001 - as above
            log.warning("cache of tokens: Redis write failed: %s", e)


# -- the table -------------------------------------------------------------------------------------


class TokenTable:
    """The unique rows. Every method runs in the transaction of the connection it is given."""

    def __init__(self, name: str = TABLE) -> None:
        """Raises ConfigError for what cannot be the name of a table."""
        self.name = sql.checked_table(name)

    def create(self, connection: sql.Connection) -> None:
        """Create the table if it is missing."""
        sql.run(
            connection,
            f"CREATE TABLE IF NOT EXISTS {self.name} (consumer_group VARCHAR(255) NOT NULL, "
            "token VARCHAR(1024) NOT NULL, created_ms BIGINT NOT NULL, "
            "PRIMARY KEY (consumer_group, token))",
        )

    def claim(self, connection: sql.Connection, group: str, token: str, now_ms: int) -> bool:
        """Write the row; False if it is there already.

        A row that another transaction has written but not committed is waited for.
        """
        done = sql.run(
            connection,
            f"INSERT INTO {self.name} (consumer_group, token, created_ms) "  # noqa: S608 - a checked name
            "VALUES (:consumer_group, :token, :created_ms) ON CONFLICT DO NOTHING",
            {"consumer_group": group, "token": token, "created_ms": now_ms},
        )
        return done.row_count == 1

    def purge(self, connection: sql.Connection, before_ms: int, row_max: int = _PURGE_ROWS) -> int:
        """Delete some of the rows that are older; returns how many."""
        done = sql.run(
            connection,
            f"DELETE FROM {self.name} WHERE (consumer_group, token) IN "  # noqa: S608 - a checked name
            f"(SELECT consumer_group, token FROM {self.name} WHERE created_ms < :before_ms "
            "LIMIT :row_max)",
            {"before_ms": before_ms, "row_max": row_max},
        )
        return max(done.row_count, 0)


# -- handling once ---------------------------------------------------------------------------------

C = TypeVar("C")


class OnceOptions(TypedDict, total=False):
    """What may be said about handling once."""

    table: TokenTable
    token: TokenOf
    """How a message is recognised; `by_key` by default."""
    cache: TokenCache
    """`RecentTokens` of this process by default."""
    keep: timedelta
    """How long tokens are kept."""
    clock: Clock


class _Rules:
    """What both kinds of `Once` share."""

    def __init__(self, group: str, options: OnceOptions) -> None:
        self.group = group
        self.table = options.get("table") or TokenTable()
        self._token_of = options.get("token", by_key)
        cache = options.get("cache")
        self._cache: TokenCache = RecentTokens() if cache is None else cache
        self._keep_ms = round(options.get("keep", KEEP) / timedelta(milliseconds=1))
        self._clock = options.get("clock", wall_ms)
        self._purge_at_ms = self._clock() + _PURGE_EVERY_MS

    def _token(self, message: ReceivedMessage) -> str:
        token = self._token_of(message)
        if not token:
            raise ValueError(f"message {message.msg_id} of topic {message.topic} has no token")
        return token

    def _is_cached(self, token: str) -> bool:
        return self._cache.has(f"{self.group}\x00{token}")

    def _remember(self, token: str) -> None:
        self._cache.add(f"{self.group}\x00{token}")

    def _purge_is_due(self) -> bool:
        now_ms = self._clock()
        if now_ms < self._purge_at_ms:
            return False
        self._purge_at_ms = now_ms + _PURGE_EVERY_MS
        return True

    @property
    def _expired_ms(self) -> int:
        return self._clock() - self._keep_ms


class Once(_Rules, Generic[C]):
    """Once per token, for blocking code.

    `begin()` gives a context manager that begins a transaction, commits it at its end and rolls it
    back on an exception: `engine.begin` and `session_maker.begin` of SQLAlchemy, `pool.connection`
    of psycopg, `lambda: connection` for one of sqlite3 or psycopg2 that nothing else uses. Handlers
    take turns at such a connection; with one for each transaction they run beside each other.
    """

    def __init__(
        self,
        group: str,
        begin: Callable[[], AbstractContextManager[C]],
        **options: Unpack[OnceOptions],
    ) -> None:
        super().__init__(group, options)
        self._begin = begin

    def create_table(self) -> None:
        """Create the table of tokens if it is missing."""
        with sql.transaction(self._begin) as connection:
            self.table.create(connection)

    def run(self, message: ReceivedMessage, work: Callable[[C], object]) -> bool:
        """Do the work in a transaction, unless it was done; whether it was done now.

        What the work raises rolls back everything, and the message may be tried again.
        """
        token = self._token(message)
        if self._is_cached(token):
            return False
        with sql.transaction(self._begin) as connection:
            is_first = self.table.claim(connection, self.group, token, self._clock())
            if is_first:
                work(connection)
        self._remember(token)
        if self._purge_is_due():
            self.purge()
        return is_first

    def handler(
        self, work: Callable[[ReceivedMessage, C], object]
    ) -> Callable[[ReceivedMessage], None]:
        """Turn a function of a message and a connection into a handler for a consumer.

        It returns None for a duplicate as well: to a consumer, False would mean "once more".
        """

        @wraps(work)
        def handle(message: ReceivedMessage) -> None:
            self.run(message, lambda connection: work(message, connection))

        return handle

    def purge(self) -> int:
        """Delete tokens that are older than `keep`; done every few minutes without asking, too."""
        with sql.transaction(self._begin) as connection:
            return self.table.purge(connection, self._expired_ms)


class AsyncOnce(_Rules, Generic[C]):
    """Once per token, for SQLAlchemy's asynchronous engines and sessions."""

    def __init__(
        self,
        group: str,
        begin: Callable[[], AbstractAsyncContextManager[C]],
        **options: Unpack[OnceOptions],
    ) -> None:
        super().__init__(group, options)
        self._begin: Callable[[], AbstractAsyncContextManager[Any]] = begin

    async def create_table(self) -> None:
        """Create the table of tokens if it is missing."""
        async with self._begin() as connection:
            await connection.run_sync(self.table.create)

    async def run(self, message: ReceivedMessage, work: Callable[[C], Awaitable[object]]) -> bool:
        """As `Once.run`."""
        token = self._token(message)
        if self._is_cached(token):
            return False
        async with self._begin() as connection:
            is_first = await connection.run_sync(self.table.claim, self.group, token, self._clock())
            if is_first:
                await work(connection)
        self._remember(token)
        if self._purge_is_due():
            await self.purge()
        return bool(is_first)

    def handler(
        self, work: Callable[[ReceivedMessage, C], Awaitable[object]]
    ) -> Callable[[ReceivedMessage], Coroutine[Any, Any, None]]:
        """As `Once.handler`."""

        @wraps(work)
        async def handle(message: ReceivedMessage) -> None:
            await self.run(message, lambda connection: work(message, connection))

        return handle

    async def purge(self) -> int:
        """As `Once.purge`."""
        async with self._begin() as connection:
            return int(await connection.run_sync(self.table.purge, self._expired_ms))


class RedisOnce:
    """Once per token by Redis alone, for work that has no database transaction.

    A token is first leased, then marked as done. If the process dies in between, the work may have
    been done or not, and another tries when the lease is over: at least once, and nearly always
    once. `client` is a redis.Redis.
    """

    def __init__(
        self,
        group: str,
        client: Any,  # noqa: ANN401 - any redis client
        *,
        token: TokenOf = by_key,
        lease: timedelta = timedelta(minutes=15),
        keep: timedelta = KEEP,
        prefix: str = "tianzhou:once:",
    ) -> None:
        self._client = client
        self._prefix = f"{prefix}{group}:"
        self._token_of = token
        self._lease_ms = round(lease / timedelta(milliseconds=1))
        self._keep_ms = round(keep / timedelta(milliseconds=1))

    def run(self, message: ReceivedMessage, work: Callable[[], object]) -> bool:
        """Do the work unless it was done; whether it was done now.

        Raises TokenBusy while another does it: the message is to be tried again later.
        """
        name = self._prefix + self._token_of(message)
        mine = uuid.uuid4().bytes
        if not self._client.set(name, mine, nx=True, px=self._lease_ms):
            state = self._client.get(name)
            if state == _DONE:
                return False
            raise TokenBusy(
                f"message {message.msg_id} of topic {message.topic} is being handled elsewhere"
            )
        try:
            work()
        except BaseException:
            # Only our own lease is given up: after its end it may be another's.
            self._client.eval(_DELETE_IF_MINE, 1, name, mine)
            raise
        self._client.set(name, _DONE, px=self._keep_ms)
        return True

    def handler(
        self, work: Callable[[ReceivedMessage], object]
    ) -> Callable[[ReceivedMessage], None]:
        """Turn a function of a message into a handler for a consumer; None is what it returns."""

        @wraps(work)
        def handle(message: ReceivedMessage) -> None:
            self.run(message, lambda: work(message))

        return handle


_DONE = b"done"
_DELETE_IF_MINE = """
if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0
"""
