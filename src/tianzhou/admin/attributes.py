"""Attributes of topics and groups (5.x), and changes of them.

A broker stores names and values. In a change each name has a sign: "+name" is added or changed,
"-name" is removed. With `signed`, attributes read from one broker can be sent to another.
"""

from collections.abc import Mapping


def signed(attributes: Mapping[str, str] | None) -> dict[str, str] | None:
    """Attribute changes: a name without a sign is added or changed."""
    if attributes is None:
        return None
    return {
        name if name.startswith(("+", "-")) else f"+{name}": value
        for name, value in attributes.items()
    }
