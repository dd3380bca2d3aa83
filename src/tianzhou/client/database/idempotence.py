"""Handling each message once, though brokers deliver at least once.

A message has a token, by default its business key. The token is written as a unique row in the
database transaction of the work itself, so both are committed or neither. A cache in front of the
database recognises most duplicates, since they usually arrive within a short time.

    once = Once("order-clerks", engine.begin)

    @once.handler
    def handle(message, transaction):         # called once per token
        transaction.execute(...)

    consumer.subscribe("orders", handle)

    token is cached    -> nothing to do
    row exists         -> nothing to do; the token is cached
    row is new         -> the work, the commit, then the token is cached

The cache is updated after the commit: a token cached too early would lose the message if the
commit failed. For work without a database there is `RedisOnce`, with a weaker guarantee.
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
from tianzhou.client.message import ReceivedMessage, duration_ms
from tianzhou.clock import Clock, steady_ms
from tianzhou.errors import TokenBusy

log = logging.getLogger(__name__)

TABLE = "tianzhou_tokens"
KEEP = timedelta(days=7)
"""Longer than all retries of a message together, and than the retention of the log."""
_PURGE_EVERY_MS = 10 * 60 * 1000
_PURGE_ROWS = 10_000

TokenOf = Callable[[ReceivedMessage], str]


def by_key(message: ReceivedMessage) -> str:
    """The business key; the id that the producer gave, for messages without a key."""
    return message.key or message.msg_id


# -- caches ----------------------------------------------------------------------------------------


class TokenCache(Protocol):
    """Caches tokens for some time; may lose any of them."""

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

    When Redis does not respond, the database decides alone, and a warning is logged.
    """

    def __init__(self, client: Any, prefix: str = "tianzhou:", keep: timedelta = KEEP) -> None:  # noqa: ANN401 - any redis client
        self._client = client
        self._prefix = prefix
        self._keep_ms = duration_ms(keep)

    def has(self, token: str) -> bool:
        try:
            return bool(self._client.exists(self._prefix + token))
        except Exception as e:  # noqa: BLE001 - the database decides without a cache
            log.warning("cache of tokens: Redis read failed: %s", e)
            return False

    def add(self, token: str) -> None:
        try:
            self._client.set(self._prefix + token, b"1", px=self._keep_ms)
        except Exception as e:  # noqa: BLE001 - as above
            log.warning("cache of tokens: Redis write failed: %s", e)


# -- the table -------------------------------------------------------------------------------------


class TokenTable(sql.Table):
    """The table of tokens. Every method runs in the transaction of the given connection."""

    def __init__(self, name: str = TABLE, *, clock: Clock | None = None) -> None:
        """Times are those of the database, unless a clock is given. Raises ConfigError."""
        super().__init__(name, clock)

    def create(self, connection: sql.Connection) -> None:
        """Create the table if it is missing."""
        self.run(
            connection,
            "CREATE TABLE IF NOT EXISTS {table} (consumer_group VARCHAR(255) NOT NULL, "
            "token VARCHAR(1024) NOT NULL, created_ms BIGINT NOT NULL, "
            "PRIMARY KEY (consumer_group, token))",
        )

    def claim(self, connection: sql.Connection, group: str, token: str) -> bool:
        """Write the row; False if it exists.

        Waits for a row that another transaction has written but not committed.
        """
        result = self.run(
            connection,
            "INSERT INTO {table} (consumer_group, token, created_ms) "
            "VALUES (:consumer_group, :token, {now}) ON CONFLICT DO NOTHING",
            consumer_group=group,
            token=token,
        )
        return result.row_count == 1

    def purge(self, connection: sql.Connection, before_ms: int, row_max: int = _PURGE_ROWS) -> int:
        """Delete some of the rows that are older; returns how many."""
        result = self.run(
            connection,
            "DELETE FROM {table} WHERE (consumer_group, token) IN "
            "(SELECT consumer_group, token FROM {table} WHERE created_ms < :before_ms "
            "LIMIT :row_max)",
            before_ms=before_ms,
            row_max=row_max,
        )
        return max(result.row_count, 0)


# -- handling once ---------------------------------------------------------------------------------

C = TypeVar("C")


class OnceOptions(TypedDict, total=False):
    """The options of `Once` and `AsyncOnce`."""

    table: TokenTable
    token: TokenOf
    """The token of a message; `by_key` by default."""
    cache: TokenCache
    """`RecentTokens` of this process by default."""
    keep: timedelta
    """How long tokens are stored."""
    clock: Clock
    """The time of rows, in ms; that of the database by default."""


class _Rules:
    """The common part of `Once` and `AsyncOnce`."""

    def __init__(self, group: str, options: OnceOptions) -> None:
        self.group = group
        self.table = options.get("table") or TokenTable(clock=options.get("clock"))
        self._token_of = options.get("token", by_key)
        cache = options.get("cache")
        self._cache: TokenCache = RecentTokens() if cache is None else cache
        self._keep_ms = duration_ms(options.get("keep", KEEP))
        self._clock = options.get("clock", steady_ms)
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

    def _purge(self, connection: sql.Connection) -> int:
        return self.table.purge(connection, self.table.now_ms(connection) - self._keep_ms)


class Once(_Rules, Generic[C]):
    """Once per token, for blocking code.

    `begin()` gives a context manager that begins a transaction, commits it at its end and rolls it
    back on an exception: `engine.begin` and `session_maker.begin` of SQLAlchemy, `pool.connection`
    of psycopg, `lambda: connection` for one of sqlite3 or psycopg2 that nothing else uses. With one
    such connection handlers run one after another; with one per transaction, concurrently.
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
        """Do the work in a transaction, unless it was done before; returns whether it was done now.

        An exception of the work rolls back everything, so the message can be retried.
        """
        token = self._token(message)
        if self._is_cached(token):
            return False
        with sql.transaction(self._begin) as connection:
            is_first = self.table.claim(connection, self.group, token)
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

        It returns None for a duplicate as well: a consumer would redeliver the message after False.
        """

        @wraps(work)
        def handle(message: ReceivedMessage) -> None:
            self.run(message, lambda connection: work(message, connection))

        return handle

    def purge(self) -> int:
        """Delete tokens that are older than `keep`; `run` does so every ten minutes, too."""
        with sql.transaction(self._begin) as connection:
            return self._purge(connection)


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
            is_first = await connection.run_sync(self.table.claim, self.group, token)
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
            return int(await connection.run_sync(self._purge))


class RedisOnce:
    """Once per token by Redis alone, for work that has no database transaction.

    A token is first leased, then marked as done. If the process dies in between, the work is
    repeated when the lease is over, although it may have been done: at least once, and nearly
    always once. `client` is a redis.Redis.
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
        self._lease_ms = duration_ms(lease)
        self._keep_ms = duration_ms(keep)

    def run(self, message: ReceivedMessage, work: Callable[[], object]) -> bool:
        """Do the work unless it was done before; returns whether it was done now.

        Raises TokenBusy while another process does it: the message must be retried later.
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
            # Only the own lease: after it has ended, another process may hold one.
            self._client.eval(_DELETE_IF_MINE, 1, name, mine)
            raise
        self._client.set(name, _DONE, px=self._keep_ms)
        return True

    def handler(
        self, work: Callable[[ReceivedMessage], object]
    ) -> Callable[[ReceivedMessage], None]:
        """Turn a function of a message into a handler for a consumer, which returns None."""

        @wraps(work)
        def handle(message: ReceivedMessage) -> None:
            self.run(message, lambda: work(message))

        return handle


_DONE = b"done"
_DELETE_IF_MINE = """
if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0
"""
