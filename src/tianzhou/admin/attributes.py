"""Attributes of topics and groups (5.x): what a broker keeps, and changes of it.

A broker keeps names and values. A change names each with a sign: "+name" is added or changed,
"-name" is removed. What was read from one broker can so be sent to another.
"""

from collections.abc import Mapping


def signed(attributes: Mapping[str, str] | None) -> dict[str, str] | None:
    """Changes: what has no sign yet is meant to be there afterwards."""
    if attributes is None:
        return None
    return {
        name if name.startswith(("+", "-")) else f"+{name}": value
        for name, value in attributes.items()
    }
