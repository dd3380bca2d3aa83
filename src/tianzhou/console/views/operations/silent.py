"""Brokers that do not answer, and things that none of the others has."""

from collections.abc import Mapping

import msgspec

from tianzhou.admin.fanout import BrokerRef
from tianzhou.console.text import Text
from tianzhou.console.web.refusals import NotFound
from tianzhou.errors import TianzhouError


class Silent(msgspec.Struct, frozen=True, kw_only=True):
    """A broker that did not answer."""

    broker: str
    why: str


def silent_brokers(failures: Mapping[BrokerRef, TianzhouError]) -> tuple[Silent, ...]:
    """The brokers that did not answer, with their reasons."""
    return tuple(
        Silent(broker=at.label, why=str(e) or type(e).__name__) for at, e in failures.items()
    )


def not_there(noun: Text, name: str, failures: Mapping[BrokerRef, TianzhouError]) -> Exception:
    """The thing is on no broker that answered: an error if some did not, else 404."""
    if failures:
        return next(iter(failures.values()))
    return NotFound(Text("There is no {noun} {name}.", noun=noun, name=name))
