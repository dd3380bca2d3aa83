"""A broker with access control that gets generated requests over sockets, and its invariants.

    answers   show nothing of bravo's messages; what must be refused is, and what must pass does
    the log   gets no record for bravo and none with the content of one of bravo's messages
    tables    topics, groups, offsets and members of bravo stay as they were
    bravo     can still work: it renews what it popped, holds its lock, and commits its half

Inputs are run a batch at a time. A finding names the inputs of the batch, which reproduce it on a
new broker.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

from tests.fuzz.guard_requests import (
    ACCOUNTS,
    ALPHA,
    INTERNAL_TOPICS,
    KEY,
    GeneratedRequest,
    LogOffsets,
    generate_request,
)
from tests.support.brokers import Peer, peer_of, pull_fields, running_broker, send_fields
from tests.support.framing import split
from tianzhou.message import StoredMessage
from tianzhou.names import CHECK_MAX_TOPIC, TIMER_TOPIC
from tianzhou.protocol import acl, properties, sysflag
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.topics import TopicConfig
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command, decode, encode
from tianzhou.protocol.pure.record import MAGIC_BLANK
from tianzhou.protocol.records.record import decode_record, scan_records

BATCH = 250
MARK = "CONTENT-OF-BRAVO"
BRAVO = acl.Credentials("bravo-account", KEY)
_RULES = f"""
accounts:
  - {{accessKey: nothing-account, secretKey: {KEY}}}
  - accessKey: alpha-account
    secretKey: {KEY}
    topicPerms: [alpha=PUB|SUB]
    groupPerms: [alphas=SUB]
  - accessKey: default-account
    secretKey: {KEY}
    defaultTopicPerm: PUB|SUB
    defaultGroupPerm: SUB
    topicPerms: [bravo=DENY]
    groupPerms: [bravos=DENY]
  - accessKey: bravo-account
    secretKey: {KEY}
    topicPerms: [bravo=PUB|SUB]
    groupPerms: [bravos=SUB]
"""
_LOG_FILE_BYTES = 64 * 1024 * 1024
_SETTINGS = {
    "aclEnable": "true", "autoCreateTopicEnable": "false", "autoCreateSubscriptionGroup": "false",
    "timerWheelEnable": "true", "recallMessageEnable": "true", "transactionTimeOut": 1,
    "transactionCheckInterval": 200, "transactionCheckMax": 1_000_000,
    "mappedFileSizeCommitLog": _LOG_FILE_BYTES, "maxMessageSize": 65536,
}  # fmt: skip
_GUARD_REMARKS = ("access denied", "access control is on", "the header of", "the body of")
_READ_BYTES = 1024 * 1024
_ANSWER_S = 30
_DAY_MS = 86_400_000


class GuardBench:
    """One broker for all inputs of a process; `close` stops it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._folder = tempfile.TemporaryDirectory(prefix="guard-")
        self._stack = AsyncExitStack()
        self._inputs: list[bytes] = []
        self._tried: list[GeneratedRequest] = []
        self._opaque = 0
        self._log_at = 0
        self._loop.run_until_complete(self._start(Path(self._folder.name)))

    # -- preparing ---------------------------------------------------------------------------------

    async def _start(self, folder: Path) -> None:
        (folder / "conf").mkdir()
        (folder / "conf" / "plain_acl.yml").write_text(_RULES)
        self._log_folder = folder / "store" / "commitlog"
        enter = self._stack.enter_async_context
        self.broker = await enter(
            running_broker(folder / "store", rocketmqHome=folder, **_SETTINGS)
        )
        for topic in ("alpha", "bravo"):
            self.broker.topics.put(
                TopicConfig(topic_name=topic, read_queue_count=1, write_queue_count=1)
            )
            for each in (f"%RETRY%{topic}s", f"%DLQ%{topic}s", f"%RETRY%{topic}s_{topic}"):
                self.broker.topics.create_for_group(each, 1)
            self.broker.groups.put(SubscriptionGroupConfig(group_name=f"{topic}s"))
        # A discarded half of alpha would create it.
        self.broker.topics.create_for_group(CHECK_MAX_TOPIC, 1)
        self._bravo = await enter(peer_of(self.broker.address))
        self._streams = [
            await asyncio.open_connection(*self.broker.address.rsplit(":", 1)) for _ in ACCOUNTS
        ]
        await self._fill()
        await self._bravo_works()
        self._log_at = self._log_end()
        self._before = self._tables()

    async def _ask(
        self, peer: Peer, by: acl.Credentials, code: int, fields: dict[str, str], body: bytes = b""
    ) -> Command:
        request = Command(code=code, ext_fields=dict(fields), body=body)
        acl.sign(request, by)
        answer = await peer.client.request(peer.address, request)
        assert answer.code == ResponseCode.SUCCESS, (by.access_key, code, answer.remark)
        return answer

    async def _send(self, by: acl.Credentials, topic: str, body: str, **props: str) -> Command:
        flag = sysflag.TRANSACTION_PREPARED if "TRAN_MSG" in props else 0
        fields = send_fields(topic, queue_id=0, props=props, sys_flag=flag)
        code = RequestCode.SEND_MESSAGE_V2
        return await self._ask(self._bravo, by, code, fields, body.encode())

    async def _fill(self) -> None:
        """Messages of both owners in every kind of topic."""

        def log_offset(answer: Command) -> int:
            return int(answer.fields["msgId"][-16:], 16)

        due_ms = int(time.time() * 1000) + _DAY_MS
        own = [log_offset(await self._send(ALPHA, "alpha", "of alpha", UNIQ_KEY="UA1", KEYS="k"))]
        own.append(log_offset(await self._send(ALPHA, "%RETRY%alphas", "of alpha")))
        foreign = [
            log_offset(await self._send(BRAVO, topic, MARK, UNIQ_KEY="UB1", KEYS="k", **more))
            for topic, more in (
                ("bravo", {}), ("bravo", {}), ("%RETRY%bravos", {}), ("%DLQ%bravos", {}),
                ("bravo", {"DELAY": "18"}),
                ("bravo", {"TIMER_DELIVER_MS": str(due_ms)}),
            )
        ]  # fmt: skip
        self._half = await self._prepare()
        foreign.append(log_offset(self._half))
        self.log_offsets = LogOffsets(tuple(own), tuple(foreign), due_ms)
        popped = await self._ask(self._bravo, BRAVO, RequestCode.POP_MESSAGE, {
            "consumerGroup": "bravos", "topic": "bravo", "queueId": "0", "maxMsgNums": "1",
            "invisibleTime": "3600000", "pollTime": "0", "bornTime": "0", "initMode": "0",
        })  # fmt: skip
        self._popped_ms = int(popped.fields["popTime"])
        commit = pull_fields("bravos", "bravo", 0, 0) | {"commitOffset": "1", "sysFlag": "5"}
        await self._ask(self._bravo, BRAVO, RequestCode.PULL_MESSAGE, commit)

    async def _prepare(self) -> Command:
        """A half whose producers are checked repeatedly."""
        return await self._send(
            BRAVO, "bravo", MARK, TRAN_MSG="true", PGROUP="bravo-producers", UNIQ_KEY="UB2"
        )

    def close(self) -> None:
        """Stop the broker and remove its files."""

        async def stop() -> None:
            for _, writer in self._streams:
                writer.close()
                await writer.wait_closed()
            await self._stack.aclose()

        self._loop.run_until_complete(stop())
        self._loop.close()
        self._folder.cleanup()

    # -- running -----------------------------------------------------------------------------------

    def run(self, data: bytes) -> int:
        """Add an input; a full batch is sent and checked. Returns how many were sent."""
        self._opaque += 1
        request = generate_request(data, self.log_offsets, self._opaque)
        self._inputs.append(data)
        if request is not None:
            self._tried.append(request)
        if len(self._inputs) < BATCH:
            return 0
        inputs, batch = self._inputs, self._tried
        self._inputs, self._tried = [], []
        try:
            self._loop.run_until_complete(self._run(batch))
        except AssertionError as e:
            shown = " ".join(each.hex() for each in inputs)
            raise AssertionError(f"{e}\nbatch of inputs: {shown}") from e
        return len(batch)

    async def _run(self, batch: list[GeneratedRequest]) -> None:
        async with asyncio.timeout(_ANSWER_S):
            for at, by in enumerate(ACCOUNTS):
                await self._run_as(self._streams[at], [each for each in batch if each.by is by])
            await self._bravo_works()
        self._check_log()
        assert self._tables() == self._before, "a table of bravo has changed"

    async def _run_as(
        self,
        stream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        batch: list[GeneratedRequest],
    ) -> None:
        reader, writer = stream
        wanted = {each.opaque: each for each in batch if each.must_be_refused or each.must_pass}
        last = self._opaque = self._opaque + 1
        fields = {"clientID": "c"}
        end = Command(code=RequestCode.UNREGISTER_CLIENT, opaque=last, ext_fields=fields)
        if batch:
            acl.sign(end, batch[0].by)
            writer.write(b"".join([each.frame for each in batch] + [encode(end)]))
            await writer.drain()
        missing: set[int] = set(wanted)
        if batch:
            missing.add(last)
        buffer = bytearray()
        while missing:
            data = await reader.read(1 << 20)
            assert data, "the broker has closed a connection"
            buffer += data
            frames, rest = split(buffer)
            for start, stop in frames:
                answer = decode(memoryview(buffer)[start:stop])
                _check_answer(answer, wanted.get(answer.opaque) if answer.is_response else None)
                missing.discard(answer.opaque if answer.is_response else -1)
            del buffer[:rest]

    async def _bravo_works(self) -> None:
        """Bravo still has its messages, lock and half."""
        beat = {"clientID": "bravo-client", "producerDataSet": [{"groupName": "bravo-producers"}]}
        text = json.dumps(beat).encode()
        await self._ask(self._bravo, BRAVO, RequestCode.HEART_BEAT, {}, text)
        queue = {"topic": "bravo", "brokerName": "broker-a", "queueId": 0}
        lock = {"consumerGroup": "bravos", "clientId": "bravo-client", "mqSet": [queue]}
        text = json.dumps(lock).encode()
        locked = await self._ask(self._bravo, BRAVO, RequestCode.LOCK_BATCH_MQ, {}, text)
        assert b'"bravo"' in locked.body, "bravo has lost its lock"
        handle = f"0 {self._popped_ms} 3600000 0 0 broker-a 0 0"
        renewed = await self._ask(self._bravo, BRAVO, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, {
            "consumerGroup": "bravos", "topic": "bravo", "queueId": "0", "offset": "0",
            "extraInfo": handle, "invisibleTime": "3600000",
        })  # fmt: skip
        self._popped_ms = int(renewed.fields["popTime"])

    # -- what must hold ----------------------------------------------------------------------------

    def _tables(self) -> dict[str, object]:
        """The tables of the broker about bravo and itself."""
        broker = self.broker
        members = broker.consumers.get("bravos")
        return {
            "topics": _without_alpha(broker.topics.topics),
            "groups": _without_alpha(broker.groups.groups),
            "offsets": {
                key: dict(queues) for key, queues in broker.offsets.by_key.items() if "bravo" in key
            },
            "members": [] if members is None else members.client_ids(),
            "client": broker.producers.find("bravo-client"),
        }  # fmt: skip

    def _log_end(self) -> int:
        for _ in self._new_records():
            pass
        return self._log_at

    def _new_records(self) -> Iterator[tuple[bytes, StoredMessage]]:
        """Records stored since the last call, read from the files."""
        while True:
            number, position = divmod(self._log_at, _LOG_FILE_BYTES)
            file = self._log_folder / f"{number * _LOG_FILE_BYTES:020d}"
            with file.open("rb") as log:
                log.seek(position)
                data = log.read(_READ_BYTES)
            at = _records_end(data)
            if not at:
                return
            for start, size, magic in scan_records(data, 0, at):
                self._log_at += size
                if magic != MAGIC_BLANK:
                    record = data[start : start + size]
                    yield record, decode_record(record, check_crc=False)

    def _check_log(self) -> None:
        for record, message in self._new_records():
            topic = message.topic
            real = message.properties.get(properties.REAL_TOPIC, "")
            if topic == "RMQ_SYS_TRANS_HALF_TOPIC" and real == "bravo":
                # The broker stores it again with each check.
                assert message.properties.get(properties.TRANSACTION_CHECK_TIMES), "a half of bravo"
                continue
            assert MARK.encode() not in record, f"content of bravo is copied into {topic}"
            assert "bravo" not in topic, f"a message is stored in {topic}"
            if topic in INTERNAL_TOPICS:
                assert "bravo" not in real, f"a message for {real} waits in {topic}"
            if topic == TIMER_TOPIC:
                recalled = message.properties.get(properties.TIMER_DEL_UNIQKEY, "")
                assert not recalled.startswith("bravo"), "a message of bravo is recalled"


def _without_alpha(table: Mapping[str, object]) -> dict[str, object]:
    return {name: each for name, each in table.items() if "alpha" not in name}


def _records_end(data: bytes) -> int:
    """Where whole records end, or a filler that ends the file."""
    at = 0
    while at + 8 <= len(data):
        size, magic = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        if size <= 0:
            break
        if int.from_bytes(magic, "big", signed=True) == MAGIC_BLANK:
            return at + size
        if at + size > len(data):
            break
        at += size
    return at


def _check_answer(answer: Command, tried: GeneratedRequest | None) -> None:
    shown = f"{answer.remark} {answer.fields}".encode() + bytes(answer.body)
    assert MARK.encode() not in shown, f"an answer or a request of the broker shows bravo: {answer}"
    if tried is None:
        return
    by_guard = answer.code == ResponseCode.NO_PERMISSION and (answer.remark or "").startswith(
        _GUARD_REMARKS
    )
    what = f"{tried.code} by {tried.by.access_key}: {answer.code} {answer.remark}"
    assert by_guard or not tried.must_be_refused, f"not refused: {what}, {tried.frame!r}"
    assert not by_guard or not tried.must_pass, f"refused: {what}, {tried.frame!r}"


def corpus() -> tuple[bytes, ...]:
    """Seeds: any bytes select a request."""
    return tuple(Random(number).randbytes(32) for number in range(64))
