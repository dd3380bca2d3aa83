"""The way into the store for every single message, whoever it came from.

A message that may not be delivered yet (a half of a transaction, a delayed or timed one) is stored
under another topic first. Each kind brings a function that turns such a draft into the one to
store; the first that changes the draft decides, in the order in which they were added. Nobody is
asked about a message that has none of `ODD_PROPERTIES`, which is nearly every one.
"""

from collections.abc import Callable

from tianzhou.protocol import properties
from tianzhou.store.message_store import Appended, Draft, MessageStore

ODD_PROPERTIES = properties.BROKER_ONLY | {
    properties.TRANSACTION_PREPARED, properties.DELAY_LEVEL, *properties.TIMER_REQUESTS,
    properties.TIMER_DEL_UNIQKEY, properties.RETRY_TOPIC, properties.INNER_MULTI_DISPATCH,
}  # fmt: skip
"""A message with one of these may have to wait under another topic, take other ways, or lose the
property before it is stored. A new kind of message adds its properties here."""

Redirect = Callable[[Draft, dict[str, str]], Draft | None]
"""Given a draft and its properties: the draft to store instead, or None if it is no concern.

What changes of its keys, tags and delay level is changed in the properties, too.
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
        return self.put(draft, found)[1]

    def put(self, draft: Draft, found: dict[str, str] | None = None) -> tuple[Draft, Appended]:
        """The same; also tells as what it was stored, which names the topic where it waits."""
        if found is None:
            found = properties.decode(draft.properties_text)
        if not ODD_PROPERTIES.isdisjoint(found):
            for redirect in self._redirects:
                instead = redirect(draft, found)
                if instead is not None:
                    # What the store looks for, keys, tags and delay, is the same as before.
                    return instead, self._store.append(instead, found)
        return draft, self._store.append(draft, found)
