"""One-time tokens, which connect a hello on the listen port with a connection to the HA port."""

import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from tianzhou.ha.frames import TOKEN_BYTES


class Hello(Protocol):
    """What the HA port needs of a checked hello (`HelloRequest`)."""

    @property
    def broker_id(self) -> int: ...
    @property
    def store_id(self) -> str: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def is_flushed(self) -> bool: ...
    @property
    def incarnation(self) -> int | None: ...


class Tokens:
    """Tokens that were issued and not used."""

    def __init__(
        self,
        count_max: int,
        valid_ms: int,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._count_max = count_max
        self._valid_ms = valid_ms
        self._random_bytes = random_bytes
        self._issued: OrderedDict[bytes, tuple[int, Hello]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._issued)

    def issue(self, hello: Hello, now_ms: int) -> bytes:
        """A new token; if there are too many the oldest becomes invalid."""
        self._expire(now_ms)
        while len(self._issued) >= self._count_max:
            self._issued.popitem(last=False)
        token = self._random_bytes(TOKEN_BYTES)
        self._issued[token] = (now_ms + self._valid_ms, hello)
        return token

    def redeem(self, token: bytes, now_ms: int) -> Hello | None:
        """The hello of a token, which becomes invalid; None for a token that is not valid."""
        self._expire(now_ms)
        _, hello = self._issued.pop(token, (0, None))
        return hello

    def clear(self) -> None:
        """Make all tokens invalid."""
        self._issued.clear()

    def _expire(self, now_ms: int) -> None:
        while self._issued:
            token, (until_ms, _) = next(iter(self._issued.items()))
            if now_ms < until_ms:
                return
            del self._issued[token]
