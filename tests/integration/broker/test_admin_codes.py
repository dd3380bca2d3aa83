"""Every request code that RocketMQ has, sent to a broker: served, or refused with a reason."""

import re
from pathlib import Path

import pytest
from tests.support.brokers import cluster

from tianzhou.broker.requests.unsupported import REFUSED
from tianzhou.namesrv.dispatch import HANDLERS
from tianzhou.protocol.bodies import decode
from tianzhou.protocol.bodies.stats import ColdDataFlowInfo
from tianzhou.protocol.codes import RequestCode, ResponseCode

WAITS = {RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE}
"""These may be parked, so other tests send them."""

PAGE = Path(__file__).parents[3] / "docs" / "admin.md"
ROW = re.compile(r"(?m)^\| (\d+) \| (\w+) \| (broker|nameserver|client|no) \| (.*?) ?\|$")


def documented() -> dict[int, tuple[str, str, str]]:
    """Name, server, and the rest of the row, by code."""
    return {int(row[1]): (row[2], row[3], row[4]) for row in ROW.finditer(PAGE.read_text())}


def test_every_code_has_its_row_in_the_documentation() -> None:
    rows = documented()
    assert {code: row[0] for code, row in rows.items()} == {code: code.name for code in RequestCode}
    for code, (_, served_by, why) in rows.items():
        assert (served_by == "nameserver") == (code in HANDLERS), code
        if served_by == "no" and code in REFUSED:
            assert why == REFUSED[code]
        assert (code in REFUSED) <= (served_by != "broker"), code


async def test_every_code_is_served_or_refused_with_a_reason(tmp_path: Path) -> None:
    rows = documented()
    async with cluster(tmp_path) as it:
        for code in sorted(set(RequestCode) - WAITS):
            # The header is empty, so a served code that needs one refuses the request.
            answer = await it.peer.ask(code, {}, b"{}")
            remark = answer.remark or ""
            is_refused = answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert is_refused == (rows[code][1] != "broker"), (code.name, remark)
            if is_refused:
                assert re.search(r"not supported because \w|this version does not serve", remark), (
                    code.name, remark,
                )  # fmt: skip
            assert "Traceback" not in remark
        # The broker still works.
        assert (await it.peer.send("t", b"x")).code == ResponseCode.SUCCESS


async def test_unknown_code_is_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        answer = await it.peer.ask(31_999)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert answer.remark is not None
        assert "31999" in answer.remark


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff\xfe", b'{"topicConfigList":[5]}', b"7"])
async def test_lists_that_cannot_be_read_are_refused(tmp_path: Path, body: bytes) -> None:
    async with cluster(tmp_path) as it:
        before = (dict(it.broker.topics.topics), dict(it.broker.groups.groups))
        for code in (
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        ):
            answer = await it.peer.ask(code, {}, body)
            if body == b'{"topicConfigList":[5]}' and answer.code == ResponseCode.SUCCESS:
                assert code == RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, (
                    "names no group"
                )
            else:
                assert answer.code != ResponseCode.SUCCESS, (code, body)
        assert before == (dict(it.broker.topics.topics), dict(it.broker.groups.groups))


async def test_cold_read_thresholds_are_stored_shown_and_removed(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:

        async def thresholds() -> dict[str, int]:
            answer = await it.peer.expect(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
            return decode(ColdDataFlowInfo, answer.body).thresholds

        assert await thresholds() == {}
        update = RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG
        await it.peer.expect(update, {}, b"g1=100\ng2=0\n")
        for bad in (b"g1=many", b"g1=-1", b"g1=9223372036854775808"):
            answer = await it.peer.ask(update, {}, bad)
            assert answer.code == ResponseCode.INVALID_PARAMETER
        many = "".join(f"n{number}=1\n" for number in range(1000))
        assert (await it.peer.ask(update, {}, many.encode())).code == ResponseCode.SYSTEM_ERROR
        assert await thresholds() == {"g1": 100, "g2": 0}
        await it.peer.expect(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, {}, b"g1")
        assert await thresholds() == {"g2": 0}


async def test_the_log_is_read_with_and_without_read_ahead(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await it.peer.send("t", b"first")
        for mode in ("1", "0"):
            fields = {"READ_AHEAD_MODE": mode}
            answer = await it.peer.expect(RequestCode.SET_COMMITLOG_READ_MODE, fields)
            assert answer.remark == f"set commitlog readahead mode success, mode: {mode}"
            assert has_random_reads(tmp_path) == (mode == "1")
            assert (await it.peer.send("t", b"x")).code == ResponseCode.SUCCESS
        for mode in ("", "2", "x"):
            fields = {"READ_AHEAD_MODE": mode}
            answer = await it.peer.ask(RequestCode.SET_COMMITLOG_READ_MODE, fields)
            assert answer.code == ResponseCode.INVALID_PARAMETER


def has_random_reads(store: Path) -> bool:
    """Whether this process has mapped the end of a log file with the advice for random reads.

    That is "rr". What is about to be written has it in any case.
    """
    is_log = has_advice = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            is_log = str(store) in line and "/commitlog/" in line
        elif is_log and line.startswith("VmFlags:"):
            has_advice = " rr" in line
    return has_advice
