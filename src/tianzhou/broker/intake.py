"""The way into the store for every single message, whoever it came from.

A message that may not be delivered yet (a half of a transaction, a delayed or timed one) is stored
under another topic first. Each kind brings a function that turns such a draft into the one to
store; the first that changes the draft decides, in the order in which they were added.
"""

from collections.abc import Callable

from tianzhou.protocol import properties
from tianzhou.store.message_store import Appended, Draft, MessageStore

Redirect = Callable[[Draft, dict[str, str]], Draft | None]
"""Given a draft and its properties: the draft to store instead, or None if it is no concern.

Raises RequestError for a message that must not be stored at all.
"""


class Intake:
    """Stores messages, those that must wait under the topic where they wait."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._redirects: list[Redirect] = []

    def redirect_by(self, redirect: Redirect) -> None:
        """Ask this one too, after those that are there already."""
        self._redirects.append(redirect)

    def append(self, draft: Draft, found: dict[str, str] | None = None) -> Appended:
        """Store a message; `found` are its properties if they are decoded already.

        Raises RequestError, StoreError, RecordError; then nothing has changed.
        """
        if self._redirects:
            if found is None:
                found = properties.decode(draft.properties_text)
            for redirect in self._redirects:
                instead = redirect(draft, found)
                if instead is not None:
                    return self._store.append(instead)
        return self._store.append(draft)
