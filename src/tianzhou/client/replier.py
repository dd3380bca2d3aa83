"""The replier: a push consumer whose handlers return the replies to the requests they get.

    replier = Replier("answerers", namesrv="127.0.0.1:9876")

    @replier.handler("questions")
    async def answer(message: ReceivedMessage) -> str:
        return "42"

    async with replier:
        await replier.wait_closed()

Bytes or text that a handler returns are sent to the requester. Other values mean what they mean to
a push consumer: None is done without a reply; after False or an exception the request is delivered
again. A reply whose requester does not wait any more is logged and dropped: handling the request
again would not help.
"""

import logging
from dataclasses import replace
from typing import Unpack

from tianzhou.client.consumer.callbacks import BoundHandler
from tianzhou.client.consumer.push import PushConsumer
from tianzhou.client.group.settings import PushOptions
from tianzhou.client.message import ReceivedMessage
from tianzhou.client.producer.producer import Producer
from tianzhou.client.producer.request_reply import is_request
from tianzhou.client.settings import ClientSettings
from tianzhou.errors import ConfigError, TianzhouError

log = logging.getLogger(__name__)


class Replier(PushConsumer):
    """A push consumer whose handlers return replies; keywords are those of `PushSettings`."""

    def __init__(
        self, group: str, *, settings: ClientSettings | None = None, **options: Unpack[PushOptions]
    ) -> None:
        """Nothing is connected yet. Raises ConfigError."""
        super().__init__(group, settings=settings, **options)
        # The producer gets the settings of all clients, and defaults for its own.
        self._producer = Producer(group, settings=self._settings)

    def _subscribe(
        self, topic: str, tags: str, sql: str | None, handler: BoundHandler | None
    ) -> None:
        if handler is None:
            raise ConfigError(f"topic {topic}: a replier needs a handler, which returns the reply")
        if handler.takes_list:
            raise ConfigError(f"topic {topic}: requests are handled one by one, not in batches")

        async def answer(message: ReceivedMessage) -> object:
            return await self._answer(handler, message)

        super()._subscribe(topic, tags, sql, replace(handler, call=answer, is_async=True))

    async def start(self) -> None:
        """Join the group and begin; see `PushConsumer.start`."""
        await self._producer.start()
        try:
            await super().start()
        except BaseException:
            await self._producer.close()
            raise

    async def _stop(self) -> None:
        try:
            await super()._stop()
        finally:
            await self._producer.close()

    async def _answer(self, handler: BoundHandler, message: ReceivedMessage) -> object:
        returned = await handler.run([message], self._executor)
        if not isinstance(returned, bytes | str):
            return returned
        if not is_request(message):
            log.warning(
                "group %s, topic %s: message %s is no request, its reply is dropped",
                self._name, message.topic, message.msg_id,
            )  # fmt: skip
            return None
        try:
            await self._producer.reply(message, returned)
        except TianzhouError as error:
            log.warning(
                "group %s, topic %s: the reply to %s is dropped: %s",
                self._name, message.topic, message.msg_id, error,
            )  # fmt: skip
        return None
