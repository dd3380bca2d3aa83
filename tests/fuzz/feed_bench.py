"""The kernel's fast path on its own memory: any input leaves a consistent state."""

from tests.support.framing import split
from tianzhou.protocol import kernel
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command, HeaderEncoding, decode, encode
from tianzhou.protocol.records import batch, record

TOPIC, GROUP = "fuzzed", "readers"
_LOG_BYTES = 64 * 1024
_ENTRY_COUNT = 500
_SLOT_COUNT, _ITEM_MAX = 31, 900
_HOST = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))


class Queue:
    """What the fast path needs of a queue: its end."""

    def __init__(self) -> None:
        self.next_offset = 0


class FeedBench:
    """One fast path; every input starts with the same memory, which has only messages to pull."""

    def __init__(self, feed: kernel.Feed) -> None:
        self._feed = feed
        self._queue = Queue()
        self._log = memoryview(bytearray(_LOG_BYTES))
        self._stage = memoryview(bytearray(_LOG_BYTES))
        self._entries = memoryview(bytearray(20 * _ENTRY_COUNT))
        self._index = memoryview(bytearray(40 + 4 * _SLOT_COUNT + 20 * _ITEM_MAX))
        feed.configure(
            frame_max=1 << 20, body_max=4000, batch_max=1000, batch_keys_max=1000, index_on=True,
            waits=False, store_host=_HOST, id_prefix="7F00000100002A9F", cluster="cluster",
            special_names=["DELAY"], region="region", trace_on=True, version=407, pull_on=True,
            lite_pull_on=True, pull_count=160, read_count=32,
            read_bytes=256 * 1024, memory_bytes=1 << 40, checked_from=0,
        )  # fmt: skip
        feed.grant_stage(self._stage)
        feed.put_topic(TOPIC, 1, 1, False)
        feed.grant_pulls(TOPIC, GROUP, None, None, (0, 1))
        feed.grant_pulls(TOPIC, GROUP, 1, None, (0, 1))

    def run(self, data: bytes) -> int:
        """Process an input and check everything; returns how many frames were consumed."""
        feed, buffer = self._feed, memoryview(bytearray(data))
        feed.grant_log(self._log, 0, 0)
        self._index[:40] = bytes(40)
        feed.grant_index(self._index, _SLOT_COUNT, _ITEM_MAX, _ITEM_MAX)
        feed.grant_queue(TOPIC, 0, self._queue, self._entries, 0, 0, _ENTRY_COUNT)
        feed.grant_queue_file(TOPIC, 0, self._queue, self._entries, 0, _ENTRY_COUNT, 0)
        self._queue.next_offset = 0
        at, used, answer_count = 0, 0, 0
        while True:
            start, stop, answers, send_count, _, _ = feed.feed(
                buffer, at, _HOST, 1_700_000_000_000, 1000, -1
            )
            assert at <= start <= len(data)
            assert stop == -1 or start <= stop <= len(data)
            frames, rest = split(answers)
            assert rest == len(answers)
            assert all(decode(answers[first:end]).is_response for first, end in frames)
            answer_count += len(frames)
            done = feed.end_batch()
            assert (done is not None) == (send_count > 0)
            if done is not None:
                message_count, done_count, size_bytes, _, queues = done
                assert done_count == send_count
                records = bytes(self._stage[:size_bytes])
                assert len(record.decode_records(records, check_crc=True)) == message_count
                self._log[used : used + len(records)] = records
                used += len(records)
                ((queue, next_offset, end_log_offset, _),) = queues
                assert queue is self._queue
                assert next_offset == self._queue.next_offset + message_count
                assert end_log_offset == used
                self._queue.next_offset = next_offset
            if stop != -1:
                return answer_count
            at = start


def corpus() -> tuple[bytes, ...]:
    """Valid inputs."""
    text = "KEYS\x01k1 k2\x02UNIQ_KEY\x01u\x02TAGS\x01a\x02WAIT\x01false"
    short = dict(zip("abcdefgh", ("p", TOPIC, "TBW102", "4", "0", "0", "1", "0"), strict=True))
    names = (
        "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag",
        "bornTimestamp", "flag",
    )  # fmt: skip
    long = dict(zip(names, short.values(), strict=True))
    items = batch.encode(batch.BatchItem(b"b" * 20, text, n) for n in range(3))
    pull = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "queueOffset": "0",
        "maxMsgNums": "32", "sysFlag": "5", "commitOffset": "1", "suspendTimeoutMillis": "0",
        "subVersion": "0", "subscription": "a||b",
    }  # fmt: skip
    requests = [
        (RequestCode.SEND_MESSAGE_V2, short | {"i": text, "j": "0", "m": "false"}, b"body"),
        (RequestCode.SEND_MESSAGE, long | {"properties": text}, b"x" * 300),
        (RequestCode.SEND_BATCH_MESSAGE, short | {"i": "", "m": "true"}, items),
        (RequestCode.PULL_MESSAGE, pull, b""),
        (RequestCode.LITE_PULL_MESSAGE, pull | {"sysFlag": "0"}, b""),
    ]
    return tuple(
        b"".join(
            encode(Command(code=code, opaque=n, ext_fields=fields, body=body, encoding=encoding))
            for n, (code, fields, body) in enumerate(requests[:count])
        )
        for encoding in (HeaderEncoding.JSON, HeaderEncoding.ROCKETMQ)
        for count in (1, 2, 3, 5)
    )
