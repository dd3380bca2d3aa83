"""The client of RocketMQ and Tianzhou: producers and consumers on asyncio, and blocking."""

from tianzhou.client.calls import Pulled, PullStatus
from tianzhou.client.consumer import PushConsumer
from tianzhou.client.consumer_settings import (
    ConsumerSettings,
    LitePullSettings,
    PushSettings,
    SimpleSettings,
)
from tianzhou.client.handlers import Decision, Later
from tianzhou.client.message import Message, ReceivedMessage
from tianzhou.client.popped import PoppedMessage
from tianzhou.client.producer import Producer
from tianzhou.client.producer_settings import ProducerSettings
from tianzhou.client.pull import LitePullConsumer, QueueReader
from tianzhou.client.queues import Queue
from tianzhou.client.replier import Replier
from tianzhou.client.routes import TopicRoute
from tianzhou.client.selectors import Selector, at_random, by_hash, by_shard, in_rooms
from tianzhou.client.sending import SendResult, SendStatus
from tianzhou.client.settings import ClientSettings
from tianzhou.client.simple import SimpleConsumer
from tianzhou.client.transaction import (
    Transaction,
    TransactionListener,
    TransactionProducer,
    TransactionResult,
    TransactionState,
)
from tianzhou.protocol.acl import Credentials
from tianzhou.protocol.command import HeaderEncoding
from tianzhou.protocol.compression import CompressionType
from tianzhou.remoting.tls import Tls

__all__ = [
    "ClientSettings",
    "CompressionType",
    "ConsumerSettings",
    "Credentials",
    "Decision",
    "HeaderEncoding",
    "Later",
    "LitePullConsumer",
    "LitePullSettings",
    "Message",
    "PoppedMessage",
    "Producer",
    "ProducerSettings",
    "PullStatus",
    "Pulled",
    "PushConsumer",
    "PushSettings",
    "Queue",
    "QueueReader",
    "ReceivedMessage",
    "Replier",
    "Selector",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "SimpleSettings",
    "Tls",
    "TopicRoute",
    "Transaction",
    "TransactionListener",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "at_random",
    "by_hash",
    "by_shard",
    "in_rooms",
]
