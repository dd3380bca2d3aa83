"""The stored properties of a send, and the hash of keys.

The optimized functions equal the simple ones.
"""

from hypothesis import example, given
from hypothesis import strategies as st

from tianzhou.protocol import properties
from tianzhou.protocol.derived import key_hash

NAMES = ("WAIT", "CLUSTER", "MSG_REGION", "TRACE_ON", "TAGS", "KEYS", "a", "XWAIT", "WAITX", "")
VALUES = ("true", "false", "", "WAIT\x01true", "\x01", "ü", "WAIT")


def _part(name: str, value: str) -> str:
    return f"{name}\x01{value}"


def _text(parts: list[str], end: str) -> str:
    return "\x02".join(parts) + end


PARTS = st.one_of(
    st.builds(_part, st.sampled_from(NAMES), st.sampled_from(VALUES)),
    st.sampled_from(["", "WAIT", "no value", "\x01"]),
)
TEXTS = st.builds(_text, st.lists(PARTS), st.sampled_from(["", "\x02"]))


@given(TEXTS, st.sampled_from(["DefaultCluster", "c"]))
@example("WAIT\x01true\x02", "c")
@example("a\x01b\x02WAIT\x01true\x02TAGS\x01x\x02", "c")
@example("a\x01\x01WAIT\x01true\x02WAIT\x01true\x02", "c")
@example("a\x01b\x02CLUSTER\x01other\x02TAGS\x01x\x02", "c")
@example("a\x01b\x02TRACE_ON\x01false\x02TAGS\x01x\x02", "c")
def test_the_stored_text_has_no_wait_and_the_stamps(text: str, cluster: str) -> None:
    found = properties.decode(text)
    stored = {name: value for name, value in found.items() if name != "WAIT"}
    stored |= {"MSG_REGION": "r", "TRACE_ON": "true", "CLUSTER": cluster}
    stamps = properties.stamps(cluster, "r", trace_on=True)
    assert properties.encode_stored(text, found, stamps) == properties.encode(stored)


@given(st.text(max_size=20), st.one_of(st.text(max_size=40), st.text("0123456789ABCDEF")))
@example("t", "")
@example("t", "12345678")
@example("t", "123456789")
@example("t", "k" * 257)
def test_keys_are_hashed_as_java_does(topic: str, key: str) -> None:
    # Java makes the hash positive, and 0 where that is not possible.
    number = abs(properties.java_hash(f"{topic}#{key}"))
    assert key_hash(topic, key) == (0 if number == 2**31 else number)
