"""Access control decodes each request into the same type as its handler.

Both name the type in the error for a request that cannot be decoded, so the errors must be equal.
"""

from pathlib import Path

import pytest
from tests.support.brokers import cluster

from tianzhou.broker.acl.needs import OPEN_CODES, needs_of
from tianzhou.errors import ProtocolError
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.scheduler import at_once

_UNREADABLE_BODY = b"[1]"


async def test_access_control_and_handlers_decode_each_request_into_the_same_type(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as it:
        for code in sorted(OPEN_CODES):
            request = Command(code=code, ext_fields={}, body=_UNREADABLE_BODY)
            with pytest.raises(ProtocolError) as refused:
                at_once(needs_of(request, lambda _: None))
            answer = await it.peer.ask(code, {}, _UNREADABLE_BODY)
            seen = f"{RequestCode(code).name}: {refused.value}, but {answer.remark}"
            assert str(refused.value) in (answer.remark or ""), seen
            assert ": " in str(refused.value), seen
