"""Blocking producers; see `tianzhou.client.producer`."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import TypeVar, Unpack

from tianzhou.client.loop_thread import loop_thread
from tianzhou.client.message import Message
from tianzhou.client.producer import producer, transaction
from tianzhou.client.producer.transaction import Transaction, TransactionListener
from tianzhou.client.sending.settings import ProducerOptions, ProducerSettings
from tianzhou.client.settings import ClientSettings
from tianzhou.client.sync.base import BlockingClient, blocking, in_background

P_co = TypeVar("P_co", bound=producer.Producer, covariant=True)


class BlockingProducer(BlockingClient[P_co]):
    """The methods of both producers."""

    @property
    def settings(self) -> ProducerSettings:
        return self._client.settings

    send = blocking(producer.Producer.send)
    send_ordered = blocking(producer.Producer.send_ordered)
    submit = in_background(producer.Producer.submit)
    oneway = blocking(producer.Producer.oneway)
    send_many = blocking(producer.Producer.send_many)
    request = blocking(producer.Producer.request)
    reply = blocking(producer.Producer.reply)
    recall = blocking(producer.Producer.recall)
    queues = blocking(producer.Producer.queues)


class Producer(BlockingProducer[producer.Producer]):
    """Sends messages; use it as `with Producer(group, namesrv=...)`, from any thread.

    Keywords are the fields of `ProducerSettings`.
    """

    def __init__(
        self,
        group: str,
        *,
        settings: ClientSettings | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        super().__init__(lambda: producer.Producer(group, settings=settings, **options))


class TransactionProducer(BlockingProducer[transaction.TransactionProducer]):
    """A producer whose messages can take part in local transactions."""

    def __init__(
        self,
        group: str,
        listener: TransactionListener,
        *,
        settings: ClientSettings | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        super().__init__(
            lambda: transaction.TransactionProducer(group, listener, settings=settings, **options)
        )

    send_in_transaction = blocking(transaction.TransactionProducer.send_in_transaction)

    @contextmanager
    def transaction(
        self, message: Message, /, *, timeout_ms: int | None = None
    ) -> Generator[Transaction]:
        """The local work as a `with` block: its end commits, an exception rolls back."""
        block = self._local_client().transaction(message, timeout_ms=timeout_ms)
        begun = loop_thread.run(block.__aenter__())
        try:
            yield begun
        except BaseException as error:
            loop_thread.run(block.__aexit__(type(error), error, error.__traceback__))
            raise
        loop_thread.run(block.__aexit__(None, None, None))
