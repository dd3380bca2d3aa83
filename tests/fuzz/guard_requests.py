"""Requests for access control: every code, names of two owners, unusual spellings.

"alpha" and its group belong to the requesting account, "bravo" and its group to another. The
expected result is known in two cases: a request is refused if a relevant field names something of
bravo, and passes if all of them name something of alpha and every value is canonical.
"""

import json
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import msgspec

from tests.fuzz.mutation import mutate
from tests.support.header_table import REQUEST_HEADERS
from tests.unit.broker.acl.attacks import required_fields
from tianzhou.broker.acl.needs import OPEN_CODES
from tianzhou.errors import ProtocolError
from tianzhou.protocol import acl, command
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command, HeaderEncoding
from tianzhou.protocol.records.recall import RecallHandle, encode_handle

KEY = "secret-of-accounts"
NOTHING = acl.Credentials("nothing-account", KEY)
ALPHA = acl.Credentials("alpha-account", KEY)
ALL_BUT_BRAVO = acl.Credentials("default-account", KEY)
ACCOUNTS = (NOTHING, ALPHA, ALL_BUT_BRAVO)

OWN_TOPICS = ("alpha", "%RETRY%alphas", "%DLQ%alphas")
OWN_GROUPS = ("alphas",)
FOREIGN_TOPICS = ("bravo", "%RETRY%bravos", "%DLQ%bravos", "%RETRY%bravos_bravo")
INTERNAL_TOPICS = (
    "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC", "rmq_sys_REVIVE_LOG_DefaultCluster", "OFFSET_MOVED_EVENT",
    "TRANS_CHECK_MAX_TIME_TOPIC",
)  # fmt: skip
FOREIGN_GROUPS = ("bravos", "CID_RMQ_SYS_TRANS")
_UNUSUAL_NAMES = (
    "", " ", "null", "bravo ", " bravo", "BRAVO", "bravo\0", "alpha\0bravo", "alpha;bravo",
    "\uff42ravo", "alpha,bravo", "NS%bravo", "alpha%bravo", "%LMQ%bravo", "%RETRY%", "%DLQ%",
    "%retry%bravos",
    "%RETRY%%RETRY%bravos", "%RETRY%alphas_bravo", "%RETRY%alphas+bravo", "%RETRY%alphas_alpha",
    "%RETRY%bravos+bravo", "DefaultCluster_REPLY_TOPIC", "RMQ_SYS_TRACE_TOPIC", "bravos", "alphas",
    "TBW102", "broker-a", "DefaultCluster", "x" * 300, "\u202ebravo", "bravo\u0301", "[\"bravo\"]",
)  # fmt: skip
_UNUSUAL_NUMBERS = (
    "", "null", "NULL", "NaN", "-0", "+0", "0x1", "1e3", "1.0", "1.5", "-1", " 1", "1 ", "1_0",
    "\u0661", "9" * 40, "-9223372036854775808", "9223372036854775807", "9223372036854775808",
    "2147483648", "[1]", "true", "1e-1", "Infinity", "1L", "00", "--1", "1e18",
)  # fmt: skip
_UNUSUAL_VALUES = (
    "", "null", "TRUE", "1", "0", "yes", "*", "SQL92", "TAG", "a || b", "bravo", "UPPER",
)  # fmt: skip
_TOPIC_FIELDS = ("topic", "b")
_GROUP_FIELDS = ("consumerGroup", "group")
_LOG_OFFSET_FIELDS = ("offset", "commitLogOffset")
_BY_LOG_OFFSET = (
    RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.END_TRANSACTION,
)  # fmt: skip
_SENDS = (
    RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2,
)  # fmt: skip
_OPEN = tuple(sorted(OPEN_CODES))
_ALL = tuple(int(code) for code in RequestCode)
_NUMBERS = {
    "queueId": "0", "e": "0", "queueOffset": "0", "maxMsgNums": "8", "commitOffset": "0",
    "suspendTimeoutMillis": "5", "invisibleTime": "60000", "pollTime": "0", "sysFlag": "4",
    "endTimestamp": str(2**62), "maxNum": "8", "defaultTopicQueueNums": "1", "d": "1",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """Log offsets of messages, as they were when the broker was filled."""

    own: tuple[int, ...]
    foreign: tuple[int, ...]
    due_ms: int
    """When a timed message of bravo is due."""


@dataclass(frozen=True, slots=True)
class GeneratedRequest:
    """One request, and its expected result."""

    frame: bytes
    opaque: int
    by: acl.Credentials
    code: int
    must_be_refused: bool
    must_pass: bool


class Draft:
    """A request that is being generated."""

    def __init__(self, random: Random, log_offsets: LogOffsets, by: acl.Credentials) -> None:
        self.random = random
        self.client = f"{by.access_key}-client"
        self.log_offsets = log_offsets
        self.foreign = False
        """A relevant field names something of bravo, or of the broker itself."""
        self.unusual = False
        """Some value is not what a client would send, or its meaning is unclear."""

    def topic(self, *, writes: bool = False) -> str:
        pick = self.random.random()
        if pick < 0.4:
            return self.random.choice(OWN_TOPICS if writes or pick < 0.3 else OWN_TOPICS[:1])
        if pick < 0.8:
            self.foreign = True
            return self.random.choice(FOREIGN_TOPICS if pick < 0.65 else INTERNAL_TOPICS)
        self.unusual = True
        return self.random.choice(_UNUSUAL_NAMES)

    def group(self) -> str:
        pick = self.random.random()
        if pick < 0.6:
            return self.random.choice(OWN_GROUPS)
        if pick < 0.85:
            self.foreign = True
            return self.random.choice(FOREIGN_GROUPS)
        self.unusual = True
        return self.random.choice(_UNUSUAL_NAMES)

    def log_offset(self) -> str:
        own = self.random.random() < 0.3
        number = self.random.choice(self.log_offsets.own if own else self.log_offsets.foreign)
        if self.random.random() < 0.4:
            self.foreign = self.foreign or not own
            return str(number)
        self.unusual = True
        return self.random.choice((
            f"{number}.0", f"{number}e0", f"+{number}", f"00{number}", f" {number}", f"{number} ",
            f"{number / 10}e1", f"{number}.", f"{number}L", hex(number), f"{number:_}",
            str(number + 2**32), str(-number), str(2**62), str(number + 1), *_UNUSUAL_NUMBERS,
        ))  # fmt: skip

    def number(self, name: str) -> str:
        if self.random.random() < 0.02:
            self.unusual = True
            return self.random.choice(_UNUSUAL_NUMBERS)
        return _NUMBERS.get(name, "0")

    def unusual_value(self) -> str:
        self.unusual = True
        return self.random.choice(_UNUSUAL_VALUES)


# -- headers ---------------------------------------------------------------------------------------


@cache
def _optional_fields(code: int) -> tuple[str, ...]:
    try:
        kind = REQUEST_HEADERS[RequestCode(code)]
    except (KeyError, ValueError):
        return ()
    return tuple(field.encode_name for field in msgspec.structs.fields(kind) if not field.required)


def _fields(draft: Draft, code: int) -> dict[str, str]:
    random = draft.random
    fields = dict(required_fields(code))
    for name, least in fields.items():
        if name in _TOPIC_FIELDS:
            fields[name] = draft.topic(writes=code in _SENDS)
        elif name in _GROUP_FIELDS:
            fields[name] = draft.group()
        elif name in _LOG_OFFSET_FIELDS and code in _BY_LOG_OFFSET:
            fields[name] = draft.log_offset()
        elif least == "0":
            fields[name] = draft.number(name)
    if code == RequestCode.RECALL_MESSAGE:
        topic = random.choice(("alpha", "bravo", fields["topic"]))
        handle = RecallHandle(topic, "broker-a", draft.log_offsets.due_ms, "UB1")
        fields["recallHandle"] = encode_handle(handle)
    if code == RequestCode.GET_CONSUME_STATS and random.random() < 0.5:
        fields[random.choice(("topic", "topicList"))] = draft.topic()
    if code == RequestCode.UNREGISTER_CLIENT and random.random() < 0.5:
        fields["consumerGroup"] = draft.group()
    if "extraInfo" in fields:
        fields["extraInfo"] = f"0 {2**40} 60000 0 {random.randrange(3)} broker-a 0 0"
    if code in (RequestCode.END_TRANSACTION, RequestCode.UNREGISTER_CLIENT):
        fields["producerGroup"] = random.choice(("alpha-producers", "bravo-producers"))
        if "commitOrRollback" in fields:
            fields["commitOrRollback"] = random.choice(("8", "12", "0"))
    for name in _optional_fields(code) if random.random() < 0.2 else ():
        if name not in fields and random.random() < 0.3:
            fields[name] = draft.unusual_value()
    if random.random() < 0.05:
        draft.unusual = True
        fields[random.choice(("Topic", "TOPIC", "b", "topic", "consumergroup", "ns", "nsd"))] = (
            random.choice(FOREIGN_TOPICS + OWN_TOPICS)
        )
    return fields


# -- messages and bodies ---------------------------------------------------------------------------


def _properties(draft: Draft) -> str:
    """Properties that only a broker writes are tried with names of bravo."""
    random = draft.random
    pairs = {"KEYS": "k", "UNIQ_KEY": random.choice(("UA1", "UB1"))}
    for name, values in (
        ("DELAY", ("1", "18", "x")), ("TIMER_DELAY_SEC", ("60", "-1")),
        ("TIMER_DEL_UNIQKEY", ("bravo+UB1", "alpha+UA1")), ("REAL_TOPIC", ("bravo", "alpha")),
        ("REAL_QID", ("0",)), ("RETRY_TOPIC", ("bravo", "%RETRY%bravos")),
        ("TRAN_MSG", ("true", "false")), ("PGROUP", ("alpha-producers", "bravo-producers")),
        ("INNER_MULTI_DISPATCH", ("bravo,%LMQ%bravo", "%RETRY%bravos")),
        ("REPLY_TO_CLIENT", ("bravo-client",)), ("ORIGIN_MESSAGE_ID", ("UB1",)),
        ("TIMER_OUT_MS", ("1", str(2**41))),
    ):  # fmt: skip
        if random.random() < 0.12:
            pairs[name] = random.choice(values)
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())


def _body(draft: Draft, code: int) -> object:
    """The JSON body of a request that has one."""
    client = draft.random.choice((draft.client, "bravo-client", ""))
    if code == RequestCode.HEART_BEAT:
        consumers = [
            {"groupName": draft.group(), "subscriptionDataSet": [
                {"topic": draft.topic(), "subString": "*"}]}
            for _ in range(draft.random.randrange(3))
        ]  # fmt: skip
        producers = [{"groupName": draft.random.choice(("alpha-producers", "bravo-producers"))}]
        draft.unusual = draft.unusual or client != draft.client
        return {
            "clientID": client,
            "consumerDataSet": consumers,
            "producerDataSet": producers[: draft.random.randrange(2)],
        }
    if code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        queue = {"topic": draft.random.choice(("alpha", "bravo")), "brokerName": "broker-a"}
        return {"consumerGroup": draft.group(), "clientId": client, "mqSet": [queue]}
    if code == RequestCode.BATCH_ACK_MESSAGE:
        return {"acks": [
            {"c": draft.group(), "t": draft.topic(), "r": draft.random.choice("012"), "q": 0,
             "so": 0, "pt": 2**40, "it": 60000, "b": "/w=="}
            for _ in range(draft.random.randrange(1, 3))
        ]}  # fmt: skip
    if code == RequestCode.QUERY_ASSIGNMENT:
        return {"topic": draft.topic(), "consumerGroup": draft.group(), "clientId": client}
    if code == RequestCode.CHECK_CLIENT_CONFIG:
        return {"group": draft.group(), "subscriptionData": {"topic": draft.topic()}}
    return None


def _json_text(draft: Draft, value: object) -> bytes:
    """The body, at times in a dialect that fastjson accepts, or with duplicate names."""
    text = json.dumps(value)
    if draft.random.random() < 0.8:
        return text.encode()
    draft.unusual = True
    for old, new in draft.random.choice((
        (('"topic": "', '"topic": "bravo", "topic": "'),),
        (('"c": "', '"c": "bravos", "c": "'),),
        (('"groupName"', "groupName"),),
        (('"consumerGroup": "alphas"', '"consumerGroup": "alphas", "consumerGroup": "bravos"'),),
        (('"', "'"),),
        (('"alphas"', "null"),),
        (('"alpha"', '{"$ref":"$.clientID"}'),),
        (('"topic"', '"Topic"'),),
        (("}", ",}"),),
        (("{", '{"$ref":"$", '),),
        (("0", "0.0"),),
    )):  # fmt: skip
        text = text.replace(old, new)
    return text.encode()


# -- frames ----------------------------------------------------------------------------------------


def _frame(header: bytes, body: bytes) -> bytes:
    size = 4 + len(header) + len(body)
    return size.to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body


def _raw_header(draft: Draft, code: int, opaque: int, fields: dict[str, str]) -> bytes:
    """A hand-written JSON header: duplicate names, values that are no strings."""
    random = draft.random
    pairs: list[tuple[str, Any]] = []
    for name, value in fields.items():
        if random.random() < 0.15:
            pairs.append((name, random.choice(FOREIGN_TOPICS + FOREIGN_GROUPS)))
        token: Any = value
        if random.random() < 0.1:
            is_number = value.isascii() and value.isdecimal() and len(value) < 18
            token = random.choice(
                (float(value), int(value)) if is_number else (value, None, [value])
            )
        pairs.append((name, token))
        if random.random() < 0.05:
            pairs.append((name, value))
    texts = ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in pairs)
    head = f'"code":{code},"flag":0,"language":"JAVA","opaque":{opaque},"version":407'
    return f'{{{head},"extFields":{{{texts}}}}}'.encode()


def _signed_raw(draft: Draft, header: bytes, body: bytes, by: acl.Credentials) -> bytes | None:
    """The frame with a signature over what the broker decodes; None if it cannot decode it."""
    start = b'"extFields":{'
    keyed = header.replace(start, start + f'"AccessKey":"{by.access_key}",'.encode(), 1)
    try:
        read = command.decode(_frame(keyed, body))
        signature = acl.signature(dict(read.fields), body, by.secret_key)
        signed = keyed.replace(start, start + f'"Signature":"{signature}",'.encode(), 1)
        command.decode(_frame(signed, body))
    except (ProtocolError, UnicodeError):
        return None
    return _frame(signed, body)


def generate_request(data: bytes, log_offsets: LogOffsets, opaque: int) -> GeneratedRequest | None:
    """The request that an input selects; None if no broker could decode it."""
    random = Random(data)
    by = random.choice(ACCOUNTS)
    draft = Draft(random, log_offsets, by)
    code = random.choice(_OPEN) if random.random() < 0.92 else random.choice(_ALL)
    fields = _fields(draft, code)
    body = b"body of alpha"
    if code in _SENDS:
        fields["f" if "b" in fields else "sysFlag"] = random.choice(("0", "0", "4"))
        fields["i" if "b" in fields else "properties"] = _properties(draft)
    made = _body(draft, code)
    if made is not None:
        body = _json_text(draft, made)
    if random.random() < 0.85:
        encoding = random.choice(tuple(HeaderEncoding))
        request = Command(
            code=code, opaque=opaque, ext_fields=fields, body=body, encoding=encoding
        )  # fmt: skip
        acl.sign(request, by)
        frame = command.encode(request)
    else:
        draft.unusual = True
        header = _raw_header(draft, code, opaque, fields)
        if random.random() < 0.3:
            header = mutate(random, header, header)
        raw = _signed_raw(draft, header, body, by)
        # A response with the opaque of another request could not be matched.
        if raw is None or command.decode(raw).opaque != opaque:
            return None
        frame, code = raw, command.decode(raw).code
    is_open = code in OPEN_CODES
    return GeneratedRequest(
        frame,
        opaque,
        by,
        code,
        must_be_refused=not draft.unusual and (draft.foreign or not is_open),
        must_pass=not draft.unusual and not draft.foreign and is_open and by is not NOTHING,
    )
