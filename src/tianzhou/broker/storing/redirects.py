"""Redirects messages that may not be delivered yet to the topic that holds them.

A half of a transaction, a delayed or a timed message is stored under another topic first. Each kind
adds a function that turns such a draft into the one to store; the first that returns one decides,
in the order in which they were added. Only messages with one of `SPECIAL_PROPERTIES` are examined.

Sends with special properties, sent-back and recalled messages, and commits of transactions are
stored through here. The store is called directly for what cannot need a redirect: sends without
special properties and batches, which have been checked; and messages that the broker moves itself
(delayed and timed messages that are due, renewed and given-up halves, ends, popped messages for the
retry topic), whose topic is decided already.
"""

from collections.abc import Callable

from tianzhou.protocol import properties
from tianzhou.store.message_store import Appended, Draft, MessageStore

SPECIAL_PROPERTIES = properties.BROKER_ONLY | {
    properties.TRANSACTION_PREPARED, properties.DELAY_LEVEL, *properties.TIMER_REQUESTS,
    properties.TIMER_DEL_UNIQKEY, properties.RETRY_TOPIC, properties.INNER_MULTI_DISPATCH,
}  # fmt: skip
"""A message with one of these may be redirected, handled in another way, or lose the property
before it is stored. A new kind of message adds its properties here."""

Redirect = Callable[[Draft, dict[str, str]], Draft | None]
"""Given a draft and its properties: the draft to store instead, or None to leave it as it is.

Changes of its keys, tags and delay level are made in the properties, too.
Raises RequestError for a message that must not be stored.
"""


class MessageWriter:
    """Stores messages after redirecting those that may not be delivered yet."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._redirects: list[Redirect] = []

    def add_redirect(self, redirect: Redirect) -> None:
        """Add a redirect after the existing ones."""
        self._redirects.append(redirect)

    def append(self, draft: Draft, props: dict[str, str] | None = None) -> Appended:
        """Store a message; `props` are its properties if they are decoded already.

        Raises RequestError, StoreError, RecordError; then nothing has changed.
        """
        return self.put(draft, props)[1]

    def put(self, draft: Draft, props: dict[str, str] | None = None) -> tuple[Draft, Appended]:
        """Like `append`; also returns the draft that was stored, with the topic that holds it."""
        if props is None:
            props = properties.decode(draft.properties_text)
        if not SPECIAL_PROPERTIES.isdisjoint(props):
            for redirect in self._redirects:
                instead = redirect(draft, props)
                if instead is not None:
                    # The properties that the store reads, keys, tags and delay, are up to date.
                    return instead, self._store.append(instead, props)
        return draft, self._store.append(draft, props)
