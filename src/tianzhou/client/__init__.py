"""Client for RocketMQ and Tianzhou: asyncio producers and consumers; `sync` has blocking ones."""

from tianzhou.client.connection.routes import TopicRoute
from tianzhou.client.consumer.callbacks import Decision, Later
from tianzhou.client.consumer.lite_pull import LitePullConsumer, QueueReader
from tianzhou.client.consumer.push import PushConsumer
from tianzhou.client.group import rebalance
from tianzhou.client.group.broker_calls import PullResult, PullStatus
from tianzhou.client.group.settings import (
    ConsumerSettings,
    LitePullSettings,
    PushSettings,
    SimpleSettings,
)
from tianzhou.client.message import Message, ReceivedMessage
from tianzhou.client.pop.messages import PoppedMessage
from tianzhou.client.pop.simple import SimpleConsumer
from tianzhou.client.producer.producer import Producer
from tianzhou.client.producer.selectors import (
    Selector,
    at_random,
    by_hash,
    by_machine_room,
    by_shard,
)
from tianzhou.client.producer.transaction import (
    Transaction,
    TransactionListener,
    TransactionProducer,
    TransactionResult,
    TransactionState,
)
from tianzhou.client.queues import Queue
from tianzhou.client.replier import Replier
from tianzhou.client.sending.send_request import SendResult, SendStatus
from tianzhou.client.sending.settings import ProducerSettings
from tianzhou.client.settings import ClientSettings
from tianzhou.protocol.acl import Credentials
from tianzhou.protocol.command import HeaderEncoding
from tianzhou.protocol.records.compression import CompressionType
from tianzhou.remoting.tls.contexts import Tls

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
    "PullResult",
    "PullStatus",
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
    "by_machine_room",
    "by_shard",
    "rebalance",
]
