"""Which tenant owns a name: laws on random names, tenants and assignments."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianzhou.monitor.ownership import Ownership, base_name, is_tenant_code, owner_of
from tianzhou.names import SYSTEM_TOPICS

CODES = st.from_regex(r"[A-Z][A-Z0-9]{1,15}", fullmatch=True).filter(lambda code: code != "RMQ")
PLAIN = st.text(string.ascii_letters + string.digits + "-", min_size=1, max_size=20)
NAMES = st.text(string.ascii_letters + string.digits + "_-%|+", min_size=1, max_size=40)
PREFIXES = st.sampled_from(("", "%RETRY%", "%DLQ%", "shop%", "%RETRY%shop%", "%DLQ%shop%"))


@given(NAMES, st.frozensets(CODES, max_size=4), st.dictionaries(NAMES, CODES, max_size=4))
def test_an_owner_is_always_a_tenant(
    name: str, codes: frozenset[str], assigned: dict[str, str]
) -> None:
    assert owner_of(name, codes, assigned) in {None, *codes}


@given(PREFIXES, CODES, PLAIN, st.frozensets(CODES, max_size=4))
def test_the_part_before_the_first_underscore_decides(
    prefix: str, code: str, rest: str, others: frozenset[str]
) -> None:
    name = f"{prefix}{code}_{rest}"
    assert owner_of(name, {code, *others}, {}) == code
    assert owner_of(name, others - {code}, {}) is None
    # An assignment does not overrule the code.
    assert owner_of(name, {code, *others}, dict.fromkeys((name, base_name(name)), "ELSE")) == code


@given(PREFIXES, PLAIN, CODES)
def test_an_assigned_name_belongs_to_its_tenant_while_that_exists(
    prefix: str, name: str, code: str
) -> None:
    assigned = {name: code}
    if name in SYSTEM_TOPICS or name == "DEFAULT":
        return
    assert owner_of(prefix + name, {code}, assigned) == code
    assert owner_of(prefix + name, set(), assigned) is None
    assert owner_of(prefix + name + "x", {code}, assigned) is None


@given(PREFIXES, CODES, CODES, PLAIN)
def test_a_tenant_never_owns_names_of_one_whose_code_begins_alike(
    prefix: str, code: str, longer: str, rest: str
) -> None:
    other = (code + longer)[:16]
    if other != code:
        assert owner_of(f"{prefix}{other}_{rest}", {code}, {}) is None


@given(st.text(max_size=20))
def test_codes_have_no_underscore_and_a_limited_length(text: str) -> None:
    if is_tenant_code(text):
        assert 2 <= len(text) <= 16
        assert text.isascii()
        assert text.isupper()
        assert text.isalnum()


@pytest.mark.parametrize(
    "name",
    [
        "TBW102", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "SELF_TEST_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC", "PAY_REPLY_TOPIC", "CID_RMQ_SYS_TRANS", "SELF_TEST_C_GROUP",
        "%RETRY%CID_RMQ_SYS_TRANS", "shop%RMQ_SYS_TRACE_TOPIC",
    ],
)  # fmt: skip
def test_system_names_belong_to_no_tenant(name: str) -> None:
    base = base_name(name)
    codes = {"RMQ", "SELF", "TRANS", "PAY", "CID", "TBW102"}
    assert owner_of(name, codes, {base: "PAY", name: "PAY"}) is None


def test_a_retry_topic_belongs_to_the_tenant_of_its_group() -> None:
    owners = Ownership(
        frozenset({"PAY", "TRADE"}), topics={"billing": "TRADE"}, groups={"billing": "PAY"},
        system=frozenset({"PAY_cluster"}),
    )  # fmt: skip
    assert owners.of_topic("billing") == "TRADE"
    for prefix in ("%RETRY%", "%DLQ%", "%RETRY%shop%"):
        assert owners.of_topic(prefix + "billing") == "PAY"
    # Of a pop consumer: group and topic.
    assert owners.of_topic("%RETRY%billing+TRADE_orders") == "PAY"
    assert owners.of_topic("PAY_cluster") is None
    assert owners.of_group("PAY_cluster") == "PAY"
