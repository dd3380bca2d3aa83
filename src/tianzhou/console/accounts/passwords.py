"""Passwords: argon2id with 19 MiB and 2 passes, one hash at a time, and rules for new ones."""

import asyncio
import itertools
import re
from collections.abc import Callable
from typing import TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from tianzhou.console.text import Text

T = TypeVar("T")

LENGTH_MIN = 12
LENGTH_MAX = 256
"""Longer ones cost time for nothing."""
WAITING_MAX = 20
"""Logins that wait for the hash of another one; more are refused."""

_HASHER = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)
_NO_ONE = (
    "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA"
    "$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
)
"""A hash that no password has: a login that does not exist costs as much as one that does."""


class Busy(Exception):
    """Too many logins at once."""


class Passwords:
    """Hashing for one console: in a thread, one at a time, so that memory stays bounded."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting = 0

    async def hashed(self, password: str) -> str:
        """The hash of a new password. Raises Busy."""
        return await self._one(lambda: hash_of(password))

    async def matches(self, stored: str, password: str) -> bool:
        """Whether a password has this hash; as slow for an empty one. Raises Busy."""
        return await self._one(lambda: _matches(stored, password))

    async def _one(self, work: Callable[[], T]) -> T:
        if self._waiting >= WAITING_MAX:
            raise Busy
        self._waiting += 1
        try:
            async with self._lock:
                return await asyncio.to_thread(work)
        finally:
            self._waiting -= 1


def hash_of(password: str) -> str:
    """The hash of a new password, in this thread."""
    return _HASHER.hash(password)


def _matches(stored: str, password: str) -> bool:
    try:
        return _HASHER.verify(stored or _NO_ONE, password[:LENGTH_MAX]) and bool(stored)
    except (VerificationError, InvalidHashError):
        return False


# -- rules -----------------------------------------------------------------------------------------

_COMMON = re.compile(
    r"(password|passw0rd|passwort|letmein|welcome|iloveyou|monkey|dragon|master|shadow|sunshine|"
    r"princess|football|baseball|superman|batman|trustno|qwerty|qwertz|azerty|asdfgh|zxcvbn|"
    r"qazwsx|abc|admin|administrator|root|login|secret|changeme|default|guest|test|user|"
    r"rocketmq|tianzhou|console|broker|company|summer|winter|spring|autumn|"
    r"woaini|mima|nihao|zhongguo|beijing|shanghai)+"
)
_SWAPPED = str.maketrans("013457@$!", "oieastasi")
"""Digits and signs that stand for letters."""
_ROWS = ("01234567890", "abcdefghijklmnopqrstuvwxyz", "qwertyuiop", "asdfghjkl", "zxcvbnm")
_STEPS = {pair for row in _ROWS for line in (row, row[::-1]) for pair in itertools.pairwise(line)}
_STEPS_RATIO_MAX = 0.7
_DIFFERENT_MIN = 5


def problem_of(password: str, login: str) -> Text | None:
    """Why a new password is refused; None if it is accepted.

    At least 12 characters, not the login, and nothing that is guessed first: common words with
    digits or signs, few different characters, and runs of the alphabet or of the keyboard.
    """
    if len(password) < LENGTH_MIN:
        return Text("The password needs at least {n} characters.", n=LENGTH_MIN)
    if len(password) > LENGTH_MAX:
        return Text("The password may have at most {n} characters.", n=LENGTH_MAX)
    plain = password.casefold()
    if login and login.casefold() in plain and len(plain) < len(login) + LENGTH_MIN:
        return Text("The password must not be made of the login.")
    if len(set(plain)) < _DIFFERENT_MIN:
        return Text("The password has too few different characters.")
    bare = re.sub(r"[^a-z]+$", "", plain)
    if any(_is_common(each) for each in (plain, plain.translate(_SWAPPED))) or (
        len(plain) - len(bare) < LENGTH_MIN and _is_common(bare.translate(_SWAPPED))
    ):
        return Text("The password is made of words that are guessed first; use other ones.")
    steps = sum(pair in _STEPS for pair in itertools.pairwise(plain))
    if steps >= _STEPS_RATIO_MAX * (len(plain) - 1):
        return Text("The password follows the alphabet or the keyboard; use another one.")
    return None


def _is_common(plain: str) -> bool:
    letters = re.sub(r"[^a-z]", "", plain)
    others = len(plain) - len(letters)
    return _COMMON.fullmatch(letters) is not None and others < LENGTH_MIN
