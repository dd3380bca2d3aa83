"""Addresses to go on at after a change."""

from tianzhou.console.web.ask import Ask


def below(ask: Ask, path: str, *names: object, **query: object) -> str:
    """An address below the root, for `Done.location`."""
    return ask.url(path, *names, **query).removeprefix(ask.console.settings.root_path)
