"""Responses to failed and refused requests."""

import pytest

from tianzhou.errors import (
    BodyError,
    FieldError,
    ProtocolError,
    RequestError,
    RequestTimeout,
    StoreError,
)
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command, encode
from tianzhou.remoting.error_responses import busy, is_bug, not_supported, refusal


@pytest.mark.parametrize(
    ("error", "code", "remark", "bug"),
    [
        (RequestError(17, "no such topic"), 17, "no such topic", False),
        (FieldError("queueId is missing"), 1, "queueId is missing", False),
        (BodyError("no JSON"), 1, "no JSON", False),
        (ProtocolError("odd"), 1, "odd", False),
        (StoreError("disk"), 1, "internal error: StoreError: disk", True),
        (RequestTimeout("late"), 1, "internal error: RequestTimeout: late", True),
        (KeyError("x"), 1, "internal error: KeyError: 'x'", True),
    ],
)
def test_errors_become_responses(error: Exception, code: int, remark: str, bug: bool) -> None:
    answer = refusal(error)
    assert (answer.code, answer.remark) == (code, remark)
    assert is_bug(error) == bug


def test_any_text_can_be_sent() -> None:
    answer = refusal(ValueError("\udcff" + "long " * 10_000))
    assert answer.remark is not None
    assert len(answer.remark) == 1_000
    assert encode(answer)


def test_other_refusals_have_their_codes() -> None:
    assert busy(7).code == ResponseCode.SYSTEM_BUSY
    refused = not_supported(Command(code=4711))
    assert refused.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert refused.remark == "request type 4711 not supported"
