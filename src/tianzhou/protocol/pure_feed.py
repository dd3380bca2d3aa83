"""The pure twin of the kernel's feed: whole receive buffers in, stored messages and answers out.

`feed` walks over the frames of a buffer. A frame that is an ordinary send is stored and answered;
the first one that is not ends the walk before it has left a trace, and the handlers take it. What
is ordinary is written down in `broker/hotpath.py`; there, too, is what the broker owes the feed.
`typings/tianzhou_kernel.pyi` names the same methods, and `tests/property/test_feed_twin.py` holds
both to what the handlers do.

All positions are the store's: it lends memory and settles what was done. Until `settle` nothing is
written but the stage: entries of queues and items of the index are gathered and written many at a
time, which costs a fraction of writing them one by one.
"""

import struct
import sys
from collections.abc import Callable
from typing import Any
from zlib import crc32

from tianzhou.protocol import properties
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.pure import ENCODING_BINARY, Buffer
from tianzhou.protocol.pure_answers import Answers
from tianzhou.protocol.pure_batches import Item, items_of
from tianzhou.protocol.pure_leases import IndexLease, IndexState, Lane, Topic
from tianzhou.protocol.pure_pulls import (
    PULL_CODES,
    Ending,
    Grant,
    LogFile,
    Pull,
    ReadLimits,
    find,
    read_pull,
    selection,
)
from tianzhou.protocol.pure_record import LAYOUTS
from tianzhou.protocol.pure_sends import (
    JSON_STARTS,
    SEND_CODES,
    Send,
    SendReader,
    parse,
    read_send,
)
from tianzhou.protocol.pure_texts import KeyHashes, Texts
from tianzhou.protocol.sysflag import MULTI_TAGS

_OUT_BYTES_MAX = 256 * 1024
"""Answers are handed over when there are so many bytes of them, and the peer had better read."""
_RECORDS_BYTES_MAX = 256 * 1024
"""The store had better write the records when there are so many bytes of them."""
_WINDOW_BYTES = 64 * 1024
"""A buffer is copied in stretches of so many bytes, since slices of views are dear."""
_OLDER_MAX = 4
"""Full files of the log that are lent for reading at a time."""
_PROPERTIES_BYTES_MAX = 32_767
_FILLER_BYTES = 8
"""Kept free at the end of a log file."""
_ANSWER_BYTES, _ANSWER_BYTES_EACH = 1024, 64
"""An answer has no more bytes than this, and so many for each message."""

_HEAD = struct.Struct(">II")
_read_head = _HEAD.unpack_from
_BINARY_HEADLINE = ENCODING_BINARY << 24
_pack_length = struct.Struct(">h").pack

Commit = tuple[str, str, int, int]
"""Topic, group, queue id, and the offset to commit."""
Fed = tuple[int, int, bytes, int, list[Commit] | None]
Settled = tuple[int, int, int, int, IndexState | None, list[tuple[Any, int, int, int]]]

_DONE, _DECLINED, _AFTER_SETTLEMENT = range(3)
"""What became of a frame: in the last case it is to be offered again when all is settled."""


class PureFeed:
    """One feed. It declines everything until it is configured and has a log and a stage."""

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}
        self._reader = SendReader()
        self._texts = Texts(())
        self._hashes = KeyHashes()
        self._log_memory: memoryview | None = None
        self._log_first = self._log_position = 0
        self._stage: memoryview | None = None
        self._index: IndexLease | None = None
        self._older: list[LogFile] = []
        self._hot_bytes = sys.maxsize
        self.is_cached: Callable[[memoryview, int, int], bool] = _always
        """Tells whether a part of the memory of a file can be read without the disk."""
        # What was done since the last settlement.
        self._touched: list[Lane] = []
        self._message_count = self._send_count = self._staged_bytes = 0
        # What was done in one call.
        self._parts: list[bytes] = []
        self._texts_out: list[str] = []
        self._out: list[Buffer] = []
        self._out_bytes: int = 0
        self._call_sends = self._call_pulls = 0
        self._commits: list[Commit] = []
        self._frame_max = 0

    def configure(
        self,
        frame_max: int,
        body_max: int,
        batch_max: int,
        index_on: bool,
        waits: bool,
        store_host: bytes,
        id_prefix: str,
        cluster: str,
        odd_names: list[str],
        region: str,
        trace_on: bool,
        version: int,
        pull_on: bool,
        lite_pull_on: bool,
        read: ReadLimits,
        /,
    ) -> None:
        """Tell the settings, all at once."""
        self._frame_max = frame_max
        self._body_max = body_max
        self._batch_max = batch_max
        self._index_on = index_on
        self._waits = waits
        self._store_host = store_host
        self._stamps = properties.encode(
            properties.stamps(cluster, region, trace_on=trace_on)
        ).encode()
        self._texts = Texts(odd_names)
        self._answers = Answers(id_prefix, region, version, trace_on=trace_on)
        self._answer_bytes = _ANSWER_BYTES + 6 * len(region.encode())
        self._pull_on, self._lite_pull_on = pull_on, lite_pull_on
        self._read_limits = read

    def set_hot_bytes(self, hot_bytes: int, /) -> None:
        """Pulls that need older records than so many bytes before the end of the log, and these
        from the disk, are the handlers'."""
        self._hot_bytes = hot_bytes

    # -- topics ------------------------------------------------------------------------------------

    def put_topic(self, name: str, queue_count: int, read_count: int, multi_tag: bool, /) -> None:
        """Make a topic known, or change it; its queues stay lent."""
        sys_flag = MULTI_TAGS if multi_tag else 0
        topic = self._topics.get(name)
        if topic is None:
            self._topics[name] = Topic(name, queue_count, read_count, sys_flag)
            return
        topic.queue_count, topic.read_count, topic.sys_flag = queue_count, read_count, sys_flag
        for queue_id, lane in topic.lanes.items():
            lane.sys_flag = sys_flag
            if queue_id >= queue_count:
                lane.close()

    def drop_topic(self, name: str, /) -> None:
        """Forget a topic and the leases of its queues."""
        topic = self._topics.pop(name, None)
        if topic is not None:
            topic.close()

    def take_counts(self) -> list[tuple[str, int, int, int, int]]:
        """(topic, queue id, messages, bytes, sends) of what was stored since the last call."""
        taken: list[tuple[str, int, int, int, int]] = []
        for topic in self._topics.values():
            for queue_id, lane in sorted(topic.lanes.items()):
                messages, size_bytes, sends = lane.taken
                if sends:
                    taken.append((topic.name, queue_id, messages, size_bytes, sends))
                    lane.taken = [0, 0, 0]
        return taken

    def take_delivered(self) -> list[tuple[str, str, int, int, int, int]]:
        """What was given to groups since the last call; what is revoked is forgotten."""
        taken: list[tuple[str, str, int, int, int, int]] = []
        for topic in self._topics.values():
            for group, grant in topic.grants.items():
                for queue_id, (messages, size_bytes, pulls) in grant.counts.items():
                    taken.append((topic.name, group, queue_id, messages, size_bytes, pulls))
                grant.counts = {}
        return taken

    # -- pulls -------------------------------------------------------------------------------------

    def grant(
        self, topic: str, group: str, version: int | None, codes: list[int] | None, /
    ) -> None:
        """Let a group pull from a topic by subscriptions in its pulls, or (with a version) by the
        one that its heartbeats told; None as codes selects everything."""
        known = self._topics.get(topic)
        if known is None:
            return
        grant = known.grants.setdefault(group, Grant())
        if version is None:
            grant.inline = True
        else:
            grant.registered = (version, None if codes is None else frozenset(codes))

    def revoke(self, topic: str, group: str, /) -> None:
        """End what was granted to a group in a topic."""
        if topic in self._topics:
            self._topics[topic].grants.pop(group, None)

    def revoke_all(self) -> None:
        """End everything that was granted."""
        for topic in self._topics.values():
            topic.grants.clear()

    def lend_queue_file(
        self,
        topic: str,
        queue_id: int,
        owner: Ending,
        memory: memoryview,
        first: int,
        stop: int,
        low: int,
        /,
    ) -> None:
        """Lend a file of a queue for reading."""
        known = self._topics.get(topic)
        if known is not None and queue_id < known.read_count:
            known.files[queue_id] = (owner, memory, first, stop, low)

    def lend_log_file(self, memory: memoryview, first: int, /) -> None:
        """Lend a full file of the log for reading; of many the oldest loan goes."""
        if all(known != first for known, _, _ in self._older):
            self._older = [*self._older[1 - _OLDER_MAX :], (first, first + len(memory), memory)]

    def give_back_files(self) -> None:
        """Give back everything that was lent for reading."""
        self._older = []
        for topic in self._topics.values():
            topic.files.clear()

    # -- leases ------------------------------------------------------------------------------------

    def lend_log(self, memory: memoryview, first: int, position: int, /) -> None:
        """Lend the last file of the log; its records are read, the next ones are the store's to
        write."""
        self._log_memory, self._log_first, self._log_position = memory, first, position

    def lend_stage(self, memory: memoryview, /) -> None:
        """Lend memory for the records to come."""
        self._stage, self._staged_bytes = memory, 0

    def lend_index(
        self,
        memory: memoryview,
        slot_count: int,
        item_max: int,
        room_max: int,
        state: IndexState,
        /,
    ) -> None:
        """Lend the last file of the index."""
        self._index = IndexLease(memory, slot_count, item_max, room_max, state, self._hashes)

    def lend_queue(
        self,
        topic: str,
        queue_id: int,
        owner: object,
        memory: memoryview,
        first: int,
        next_offset: int,
        limit: int,
        /,
    ) -> bool:
        """Lend the end of a queue; False if its topic is not known or has no such queue."""
        known = self._topics.get(topic)
        if known is None or not 0 <= queue_id < known.queue_count:
            return False
        lane = known.lanes.get(queue_id)
        if lane is None:
            lane = known.lanes[queue_id] = Lane(known, queue_id)
        lane.lend(owner, memory, first, next_offset, limit)
        return True

    def give_back_queue(self, topic: str, queue_id: int, /) -> None:
        """Give back the end of one queue."""
        known = self._topics.get(topic)
        if known is not None and queue_id in known.lanes:
            known.lanes[queue_id].close()

    def give_back(self) -> None:
        """Give back all memory; what was not settled is as if it had not happened."""
        self._log_memory = self._index = None
        self._touched = []
        self._message_count = self._send_count = self._staged_bytes = 0
        self._end_call()
        self.give_back_queues()
        self.give_back_files()

    def give_back_queues(self) -> None:
        """Give back the ends of all queues."""
        for topic in self._topics.values():
            topic.close()

    # -- feeding -----------------------------------------------------------------------------------

    def feed(
        self, buffer: memoryview, at: int, born_host: bytes, now_ms: int, budget: int, /
    ) -> Fed:
        """Handle frames from `at` on, as long as less than `budget` sends are to be settled.

        Answers where the next frame begins and ends, the answers, how many sends are to be settled
        before they may leave, and offsets to commit. Both ends are equal if no whole frame is left;
        the end is -1 if `feed` wants to be called again when everything is settled.
        """
        staged_before = self._staged_bytes
        start, stop = self._walk(buffer, at, born_host, now_ms, budget)
        if self._parts and self._stage is not None:
            self._stage[staged_before : self._staged_bytes] = b"".join(self._parts)
        self._hand_over_texts()
        answers = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        fed = (start, stop, bytes(answers), self._call_sends, self._commits or None)
        self._end_call()
        return fed

    def settle(self) -> Settled | None:
        """What the store has to note, None if nothing happened. It is over for the feed then."""
        if not self._message_count:
            return None
        touched, self._touched = self._touched, []
        queues = [lane.settle() for lane in touched]
        key_count, state = 0, None
        if self._index is not None and self._index.keys:
            key_count = self._index.key_count
            state = self._index.settle()
        settled = (
            self._message_count, self._send_count, self._staged_bytes, key_count, state, queues,
        )  # fmt: skip
        self._message_count = self._send_count = self._staged_bytes = 0
        return settled

    def _end_call(self) -> None:
        self._parts = []
        self._texts_out = []
        self._out = []
        self._out_bytes = self._call_sends = self._call_pulls = 0
        self._commits = []

    def _hand_over_texts(self) -> None:
        """Answers to sends become bytes."""
        if self._texts_out:
            self._out.append("".join(self._texts_out).encode("latin-1"))
            self._texts_out = []

    def _walk(
        self, buffer: memoryview, at: int, born_host: bytes, now_ms: int, budget: int
    ) -> tuple[int, int]:
        """Where the next frame begins and ends that is not taken; see `feed`."""
        start, size = at, len(buffer)
        base, window = at, bytes(buffer[at : at + _WINDOW_BYTES])
        while size - start >= _HEAD.size:
            here = start - base
            if window.startswith(JSON_STARTS, here + 8) or window[here + 4 : here + 5] == b"\1":
                here = self._walk_known(window, here, born_host, now_ms, budget)
                start = base + here
                if size - start < _HEAD.size:
                    break
            length, _ = _read_head(buffer, start)
            stop = start + 4 + length
            if not 4 <= length <= self._frame_max or stop > size:
                break
            if self._out_bytes >= _OUT_BYTES_MAX or self._staged_bytes >= _RECORDS_BYTES_MAX:
                return start, -1
            if here and here + 4 + length > len(window):
                base, window = start, bytes(buffer[start : start + _WINDOW_BYTES])
                continue
            taken = self._take_frame(bytes(buffer[start:stop]), born_host, now_ms, budget)
            if taken != _DONE:
                return start, stop if taken == _DECLINED else -1
            start = stop
        return start, start

    # -- sends that are like others before ---------------------------------------------------------

    def _walk_known(
        self, window: bytes, at: int, born_host: bytes, now_ms: int, budget: int
    ) -> int:
        """Store single messages as long as their headers are known and there is room for them.

        Answers where the first frame begins that needs a closer look. This is what nearly every
        message goes through; what it does is what `_take_send` does, with the names at hand.
        """
        log, stage = self._log_memory, self._stage
        index = self._index if self._index_on else None
        layout = LAYOUTS.get((len(born_host), len(self._store_host)))
        left = min(
            budget - self._send_count, (_OUT_BYTES_MAX - self._out_bytes) // self._answer_bytes
        )
        if log is None or stage is None or layout is None or self._answer_bytes > self._frame_max:
            return at
        hosts_v6, pack_head, around_bytes = layout
        read_json, read_binary = self._reader.read_json, self._reader.read_binary
        read_escaped, read_plain = self._texts.read_escaped, self._texts.read_plain
        answers, heads = self._answers, self._answers.heads
        json_start, json_middle, json_end = (
            answers.json_start, answers.json_middle, answers.json_end,
        )  # fmt: skip
        stamps, store_host = self._stamps, self._store_host
        stamps_bytes = len(stamps)
        around_bytes += stamps_bytes + 2
        frame_max, body_max, waits = self._frame_max, self._body_max, self._waits
        text_max = _PROPERTIES_BYTES_MAX - stamps_bytes
        parts, texts_out, touched = self._parts, self._texts_out, self._touched
        keys, free_count, filed_count = self._filing()
        position, log_first, window_bytes = self._log_position, self._log_first, len(window)
        position_max = min(
            len(log) - _FILLER_BYTES,
            position + min(len(stage), _RECORDS_BYTES_MAX) - self._staged_bytes,
        )
        if waits and self._call_pulls:
            left = 0
        before, before_count = position, left
        while left > 0 and at + 8 <= window_bytes:
            length, headline = _read_head(window, at)
            frame_end, body_at = at + 4 + length, at + 8 + (headline & 0xFF_FFFF)
            if frame_end > window_bytes or body_at > frame_end or length > frame_max:
                break
            if headline < _BINARY_HEADLINE:
                read = read_json(window[at + 8 : body_at])
                found = read_escaped(read[2]) if read is not None else None
            else:
                read = read_binary(window[at + 8 : body_at])
                found = read_plain(read[2]) if read is not None else None
            if read is None or found is None:
                break
            send, born_ms, _, opaque = read
            text, code, filed, waits_too = found
            lane = send.lane
            if lane is None or (waits and not waits_too):
                break
            queue_offset = lane.next
            body = window[body_at:frame_end]
            body_bytes, text_bytes = len(body), len(text)
            tail = lane.tail
            size = around_bytes + body_bytes + len(tail) + text_bytes
            end = position + size
            if (
                queue_offset >= lane.limit
                or end > position_max
                or body_bytes > body_max
                or text_bytes > text_max
            ):
                break
            log_offset = log_first + position
            if filed:
                free_count -= len(filed)
                if free_count < 0:
                    break
                keys.append((lane.hashed, filed, log_offset, now_ms))
                filed_count += len(filed)
            parts += (
                pack_head(
                    size, lane.magic, crc32(body) & 0x7FFF_FFFF, lane.queue_id, send.flag,
                    queue_offset, log_offset, send.sys_flag | lane.sys_flag | hosts_v6, born_ms,
                    born_host, now_ms, store_host, send.reconsume_count, 0, body_bytes,
                ),
                body, tail, _pack_length(text_bytes + stamps_bytes), text, stamps,
            )  # fmt: skip
            entries = lane.entries
            if not entries:
                touched.append(lane)
            entries += (log_offset, size, code)
            lane.next = queue_offset + 1
            if not send.is_oneway:
                if send.is_json:
                    answer = (
                        f"{json_start}{log_offset:016X}{lane.json_queue}{queue_offset}"
                        f"{json_middle}{opaque}{json_end}"
                    )
                    answer_bytes = len(answer)
                    texts_out.append(heads.get(answer_bytes) or answers.json_head(answer_bytes))
                else:
                    answer = answers.binary(
                        [log_offset], lane.binary_queue, queue_offset, int(opaque)
                    )
                texts_out.append(answer)
            position, at, left = end, frame_end, left - 1
        count = before_count - left
        if index is not None:
            index.free_count -= filed_count
            index.key_count += filed_count
        self._log_position = position
        self._staged_bytes += position - before
        self._out_bytes += count * self._answer_bytes
        self._message_count += count
        self._send_count += count
        self._call_sends += count
        return at

    def _filing(self) -> tuple[list[tuple[int, tuple[bytes, ...], int, int]], int, int]:
        """Where keys go, for how many there is room, and how many there are of them: none.

        Where there is no index to be, all have room, and nobody looks at them.
        """
        if not self._index_on:
            return [], sys.maxsize, 0
        return (self._index.keys, self._index.free_count, 0) if self._index else ([], 0, 0)

    # -- everything else ---------------------------------------------------------------------------

    def _take_frame(self, frame: bytes, born_host: bytes, now_ms: int, budget: int) -> int:
        """Handle one frame of any kind, or leave no trace of it."""
        _, headline = _read_head(frame)
        body_at = 8 + (headline & 0xFF_FFFF)
        if body_at > len(frame):
            return _DECLINED
        read = found = None
        if headline < _BINARY_HEADLINE:
            read = self._reader.read_json(frame[8:body_at])
            found = self._texts.read_escaped(read[2]) if read is not None else None
        elif headline < 2 * _BINARY_HEADLINE:
            read = self._reader.read_binary(frame[8:body_at])
            found = self._texts.read_plain(read[2]) if read is not None else None
        if read is None or found is None:
            header = parse(frame)
            if header is None:
                return _DECLINED
            if header[0] in PULL_CODES:
                return self._take_pull(read_pull(header))
            was_known = read is not None
            read = read_send(header) if header[0] in SEND_CODES else None
            if read is None:
                return _DECLINED
            found = self._texts.read(read[2])
            if not was_known and header[0] != RequestCode.SEND_MESSAGE:
                self._reader.keep(frame[8:body_at], read[0])
        # Answers to pulls must not wait for the disk with those to sends.
        if self._waits and self._call_pulls:
            return _AFTER_SETTLEMENT
        if found is None or self._send_count >= budget or len(frame) - body_at > self._body_max:
            return _DECLINED
        text, code, filed, waits = found
        text += self._stamps
        if len(text) > _PROPERTIES_BYTES_MAX or (self._waits and not waits):
            return _DECLINED
        send, body = read[0], frame[body_at:]
        items: list[Item] | None = [(body, text, send.flag, code, filed)]
        if send.is_batch:
            items = items_of(body, self._texts, self._batch_max)
        if items is None:
            return _DECLINED
        return self._take_send(send, read[1], int(read[3]), items, born_host, now_ms)

    def _lane_of(self, send: Send) -> Lane | None:
        """Where the messages of a send go; a single one remembers that, and is known then."""
        topic = self._topics.get(send.topic)
        lane = topic.lanes.get(send.queue_id) if topic is not None else None
        if not send.is_batch:
            send.lane = lane
        return lane

    def _take_send(
        self,
        send: Send,
        born_ms: int,
        opaque: int,
        items: list[Item],
        born_host: bytes,
        now_ms: int,
    ) -> int:
        """Store what a send brings, one message or a batch, or leave no trace of it."""
        lane, log, stage, index = self._lane_of(send), self._log_memory, self._stage, self._index
        layout = LAYOUTS.get((len(born_host), len(self._store_host)))
        count = len(items)
        if lane is None or log is None or stage is None or layout is None:
            return _DECLINED
        hosts_v6, pack_head, head_bytes = layout
        around_bytes = head_bytes + len(lane.tail) + 2
        size_all = sum(around_bytes + len(item[0]) + len(item[1]) for item in items)
        key_count = sum(len(item[4]) for item in items) if self._index_on else 0
        if (
            lane.next + count > lane.limit
            or self._log_position + size_all + _FILLER_BYTES > len(log)
            or self._answer_bytes + count * _ANSWER_BYTES_EACH > self._frame_max
            or (key_count and (index is None or key_count > index.free_count))
        ):
            return _DECLINED
        if self._staged_bytes + size_all > len(stage):
            return _AFTER_SETTLEMENT if self._staged_bytes else _DECLINED

        # Everything is known to fit; from here on there are traces.
        log_offset, queue_offset = self._log_first + self._log_position, lane.next
        sys_flag = send.sys_flag | lane.sys_flag | hosts_v6
        if not lane.entries:
            self._touched.append(lane)
        log_offsets: list[int] = []
        for at, (body, text, flag, code, filed) in enumerate(items, queue_offset):
            size = around_bytes + len(body) + len(text)
            self._parts += (
                pack_head(
                    size, lane.magic, crc32(body) & 0x7FFF_FFFF, lane.queue_id, flag, at,
                    log_offset, sys_flag, born_ms, born_host, now_ms, self._store_host,
                    send.reconsume_count, 0, len(body),
                ),
                body, lane.tail, _pack_length(len(text)), text,
            )  # fmt: skip
            lane.entries += (log_offset, size, code)
            if index is not None and filed and self._index_on:
                index.keys.append((lane.hashed, filed, log_offset, now_ms))
            log_offsets.append(log_offset)
            log_offset += size
        if index is not None:
            index.free_count -= key_count
            index.key_count += key_count
        lane.next += count
        lane.batched += count - 1
        self._log_position += size_all
        self._staged_bytes += size_all
        self._message_count += count
        self._send_count += 1
        self._call_sends += 1
        if not send.is_oneway:
            answer = (
                self._answers.json(log_offsets, lane.json_queue, queue_offset, opaque)
                if send.is_json
                else self._answers.binary(log_offsets, lane.binary_queue, queue_offset, opaque)
            )
            self._texts_out.append(answer)
            self._out_bytes += len(answer)
        return _DONE

    # -- answering pulls ---------------------------------------------------------------------------

    def _take_pull(self, pull: Pull | None) -> int:
        """Answer one pull, or leave no trace of it."""
        if pull is None:
            return _DECLINED
        topic = self._topics.get(pull.topic)
        lane = topic.lanes.get(pull.queue_id) if topic is not None else None
        # Answers to pulls must not wait for the disk with those to sends, and what is not settled
        # is not to be found yet.
        if (self._waits and self._call_sends) or (lane is not None and lane.entries):
            return _AFTER_SETTLEMENT
        is_on = self._pull_on and (pull.code == RequestCode.PULL_MESSAGE or self._lite_pull_on)
        if not is_on or topic is None or self._log_memory is None:
            return _DECLINED
        grant, file = topic.grants.get(pull.group), topic.files.get(pull.queue_id)
        if grant is None or file is None or pull.queue_id >= topic.read_count:
            return _DECLINED
        wanted = selection(pull, grant)
        if wanted is None:
            return _DECLINED
        high = file[0].next_offset
        log = (self._log_first, self._log_first + self._log_position, self._log_memory)
        cold = (log[1] - self._hot_bytes, self.is_cached)
        given = find(pull, wanted[0], file, log, self._older, self._read_limits, high, cold)
        if given is None:
            return _DECLINED
        count, size_bytes, next_offset, pieces = given
        if size_bytes + _ANSWER_BYTES > self._frame_max:
            return _DECLINED
        put = self._answers.found_json if pull.is_json else self._answers.found_binary
        head = put(pull.opaque, next_offset, file[4], high, size_bytes)
        self._hand_over_texts()
        self._out += (head, *pieces)
        self._out_bytes += len(head) + size_bytes
        self._call_pulls += 1
        counts = grant.counts.setdefault(pull.queue_id, [0, 0, 0])
        counts[0] += count
        counts[1] += size_bytes
        counts[2] += 1
        if pull.commits:
            self._commits.append((topic.name, pull.group, pull.queue_id, pull.commit_offset))
        return _DONE


def _always(_: memoryview, __: int, ___: int) -> bool:
    """Nobody knows better."""
    return True
