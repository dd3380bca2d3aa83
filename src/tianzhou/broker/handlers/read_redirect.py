"""Which broker a consumer pulls from next, and what a slave responds instead of its own result.

Brokers suggest a broker id with every response to a pull, and clients follow it:

    slaveReadEnable=false   0, the master
    reader far behind       whichBrokerWhenConsumeSlowly of the group (1), on master and slaves
    else                    brokerId of the group (0)

"Far behind" means farther from the end of this broker's log than the part of it that is in memory
(accessMessageInMemoryMaxRatio).

A slave sends a reader back that it must not serve, or that has read everything here and belongs to
the master: PULL_RETRY_IMMEDIATELY with the suggested id, at the offset that was asked for. So does
a slave without that offset: it may be behind its master, so it corrects no offsets unless
offsetCheckInSlave is set. Clients repeat such a pull without a pause, and a client whose route has
no master repeats it here; so a pull that may be parked gets this response after SEND_BACK_MS.

These are the rules of 4.9.7. The return of a reader that has read everything is a rule of 5.5.0;
there it concerns groups with another brokerId, too, which would change brokers with every pull.
"""

import dataclasses
from typing import NamedTuple

from tianzhou.broker.config import BrokerConfig
from tianzhou.names import MASTER_ID
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.codes import ResponseCode
from tianzhou.store.reading import Read, ReadStatus

SEND_BACK_MS = 1000
"""How long a pull is parked before it is sent back to the master."""

_IN_RANGE = (ReadStatus.FOUND, ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.MESSAGE_WAS_REMOVING)


class PullOutcome(NamedTuple):
    """What to respond to a pull, unless it is parked."""

    code: int
    read: Read
    broker_id: int
    """The suggested broker."""
    wait_ms: int | None = None
    """How long it may be parked at most, if it is sent back."""

    @property
    def has_nothing(self) -> bool:
        """Whether a later message may change the outcome."""
        return self.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)

    @property
    def may_park(self) -> bool:
        return self.code == ResponseCode.PULL_NOT_FOUND or self.wait_ms is not None


def serves_readers(config: BrokerConfig) -> bool:
    """Whether this broker serves messages: a slave does if slaveReadEnable is true."""
    return config.slave_read_enable or not config.is_slave


def suggested_brokers(config: BrokerConfig, group: SubscriptionGroupConfig) -> tuple[int, int]:
    """The ids of the brokers to pull from next: usually, and for a reader that is far behind."""
    if not config.slave_read_enable:
        return MASTER_ID, MASTER_ID
    return group.broker_id, group.which_broker_when_consume_slowly


def not_served(queue_offset: int, low: int, high: int) -> PullOutcome:
    """The outcome on a slave that serves no readers."""
    read = Read(ReadStatus.NO_MATCHED_MESSAGE, [], queue_offset, low, high)
    return _sent_back(read, MASTER_ID)


def outcome_of(
    config: BrokerConfig,
    group: SubscriptionGroupConfig,
    read: Read,
    code: int,
    queue_offset: int,
    memory_bytes: int,
    *,
    has_master: bool,
) -> PullOutcome:
    """The outcome of a read from an offset on; `code` is the one that a master responds.

    `has_master` is whether this slave is connected to its master.
    """
    usual_id, slow_id = suggested_brokers(config, group)
    broker_id = slow_id if read.behind_bytes > memory_bytes else usual_id
    if not config.is_slave:
        return PullOutcome(code, read, broker_id)
    if read.status not in _IN_RANGE and not config.offset_check_in_slave:
        read = dataclasses.replace(read, next_offset=queue_offset)
        if code == ResponseCode.PULL_OFFSET_MOVED:
            return _sent_back(read, group.broker_id)
    if code == ResponseCode.PULL_NOT_FOUND and has_master and broker_id == MASTER_ID:
        return _sent_back(read, MASTER_ID)
    return PullOutcome(code, read, broker_id)


def _sent_back(read: Read, broker_id: int) -> PullOutcome:
    return PullOutcome(ResponseCode.PULL_RETRY_IMMEDIATELY, read, broker_id, SEND_BACK_MS)
