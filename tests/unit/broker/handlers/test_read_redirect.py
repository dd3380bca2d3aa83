"""Which broker is suggested to readers, and what slaves respond, by the rules of RocketMQ."""

import pytest

from tianzhou.broker.config import BrokerConfig, load_broker_config
from tianzhou.broker.handlers.read_redirect import (
    SEND_BACK_MS,
    PullOutcome,
    not_served,
    outcome_of,
    serves_readers,
)
from tianzhou.config.settings import Given
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.codes import ResponseCode
from tianzhou.store.reading import Read, ReadStatus

MEMORY_BYTES = 1000
ASKED = 50
DEFAULT = SubscriptionGroupConfig(group_name="g")
STAYS = SubscriptionGroupConfig(group_name="stays", broker_id=1, which_broker_when_consume_slowly=2)
"""A group of a read-write split: it reads from slaves only."""

FOUND, NOT_FOUND, RETRY, MOVED = (
    ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)  # fmt: skip


def config_of(*, is_slave: bool, **pairs: str) -> BrokerConfig:
    role = {"brokerRole": "SLAVE", "brokerId": "1"} if is_slave else {}
    given = [Given(key, value, "test") for key, value in (role | pairs).items()]
    return load_broker_config(environ={}, flags=given).config


MASTER = config_of(is_slave=False)
READING_MASTER = config_of(is_slave=False, slaveReadEnable="true")
SLAVE = config_of(is_slave=True)
READING_SLAVE = config_of(is_slave=True, slaveReadEnable="true")
CHECKING_SLAVE = config_of(is_slave=True, slaveReadEnable="true", offsetCheckInSlave="true")


def outcome(
    config: BrokerConfig,
    status: ReadStatus,
    code: int,
    *,
    group: SubscriptionGroupConfig = DEFAULT,
    behind_bytes: int = 0,
    has_master: bool = False,
) -> PullOutcome:
    read = Read(status, [], 7, 0, 10, behind_bytes)
    return outcome_of(config, group, read, code, ASKED, MEMORY_BYTES, has_master=has_master)


# -- suggested brokers -----------------------------------------------------------------------------


@pytest.mark.parametrize("config", [READING_MASTER, READING_SLAVE])
@pytest.mark.parametrize(
    ("group", "behind_bytes", "broker_id"),
    [
        (DEFAULT, MEMORY_BYTES, 0),
        (DEFAULT, MEMORY_BYTES + 1, 1),
        (STAYS, MEMORY_BYTES, 1),
        (STAYS, MEMORY_BYTES + 1, 2),
    ],
)
def test_suggestion_depends_on_the_distance_from_the_end(
    config: BrokerConfig, group: SubscriptionGroupConfig, behind_bytes: int, broker_id: int
) -> None:
    """PullMessageProcessor with slaveReadEnable, on whichever broker is asked."""
    found = outcome(config, ReadStatus.FOUND, FOUND, group=group, behind_bytes=behind_bytes)
    assert (found.code, found.broker_id, found.wait_ms) == (FOUND, broker_id, None)


@pytest.mark.parametrize("behind_bytes", [0, MEMORY_BYTES + 1])
def test_without_slave_reads_the_master_is_suggested(behind_bytes: int) -> None:
    found = outcome(MASTER, ReadStatus.FOUND, FOUND, group=STAYS, behind_bytes=behind_bytes)
    assert found.broker_id == 0


def test_reader_far_behind_whose_filter_selects_nothing_goes_to_the_slave() -> None:
    none = outcome(
        READING_MASTER, ReadStatus.NO_MATCHED_MESSAGE, RETRY, behind_bytes=MEMORY_BYTES + 1
    )
    assert (none.code, none.broker_id, none.read.next_offset) == (RETRY, 1, 7)


# -- slaves that serve nobody ----------------------------------------------------------------------


def test_only_slaves_without_slave_reads_serve_no_readers() -> None:
    assert [serves_readers(each) for each in (MASTER, READING_MASTER, READING_SLAVE, SLAVE)] == [
        True, True, True, False,
    ]  # fmt: skip


def test_slave_that_serves_no_readers_sends_them_to_the_master() -> None:
    sent = not_served(ASKED, 3, 90)
    assert (sent.code, sent.broker_id, sent.read.next_offset) == (RETRY, 0, ASKED)
    assert (sent.read.min_offset, sent.read.max_offset) == (3, 90)
    assert sent.may_park
    assert sent.wait_ms == SEND_BACK_MS, "a client without a master in its route would spin"


# -- wrong offsets ---------------------------------------------------------------------------------

WRONG = (
    ReadStatus.OFFSET_TOO_SMALL, ReadStatus.OFFSET_OVERFLOW_BADLY, ReadStatus.NO_MESSAGE_IN_QUEUE,
    ReadStatus.NO_MATCHED_LOGIC_QUEUE,
)  # fmt: skip


@pytest.mark.parametrize("status", WRONG)
@pytest.mark.parametrize(("group", "broker_id"), [(DEFAULT, 0), (STAYS, 1)])
def test_slave_corrects_no_offset(
    status: ReadStatus, group: SubscriptionGroupConfig, broker_id: int
) -> None:
    """DefaultMessageStore.nextOffsetCorrection: it may be behind its master."""
    found = outcome(READING_SLAVE, status, MOVED, group=group)
    assert (found.code, found.broker_id, found.read.next_offset) == (RETRY, broker_id, ASKED)
    assert found.wait_ms == SEND_BACK_MS


@pytest.mark.parametrize("config", [CHECKING_SLAVE, MASTER, READING_MASTER])
@pytest.mark.parametrize("status", WRONG)
def test_offset_is_corrected(config: BrokerConfig, status: ReadStatus) -> None:
    found = outcome(config, status, MOVED)
    assert (found.code, found.read.next_offset, found.may_park) == (MOVED, 7, False)


def test_slave_does_not_skip_messages_that_it_deleted_during_the_read() -> None:
    found = outcome(READING_SLAVE, ReadStatus.OFFSET_FOUND_NULL, NOT_FOUND)
    assert (found.code, found.read.next_offset) == (NOT_FOUND, ASKED)


# -- the way back ----------------------------------------------------------------------------------


def test_reader_that_has_read_everything_goes_back_to_the_master() -> None:
    """PullMessageProcessor.composeResponseHeader of 5.5.0."""
    none = outcome(READING_SLAVE, ReadStatus.OFFSET_OVERFLOW_ONE, NOT_FOUND, has_master=True)
    assert (none.code, none.broker_id, none.read.next_offset) == (RETRY, 0, ASKED)
    assert none.wait_ms == SEND_BACK_MS


def test_reader_waits_on_the_slave_while_the_master_is_gone() -> None:
    none = outcome(READING_SLAVE, ReadStatus.OFFSET_OVERFLOW_ONE, NOT_FOUND, has_master=False)
    assert (none.code, none.broker_id, none.wait_ms) == (NOT_FOUND, 0, None)
    assert none.may_park


def test_group_that_belongs_to_slaves_waits_there() -> None:
    """Unlike 5.5.0, which sends it to the master, and that sends it back."""
    none = outcome(
        READING_SLAVE, ReadStatus.OFFSET_OVERFLOW_ONE, NOT_FOUND, group=STAYS, has_master=True
    )
    assert (none.code, none.broker_id, none.wait_ms) == (NOT_FOUND, 1, None)


def test_master_lets_readers_wait() -> None:
    none = outcome(READING_MASTER, ReadStatus.OFFSET_OVERFLOW_ONE, NOT_FOUND)
    assert (none.code, none.may_park, none.wait_ms) == (NOT_FOUND, True, None)
