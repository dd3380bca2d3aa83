"""Sending requests to brokers and nameservers, with fail-over between nameservers.

If a nameserver does not respond, the next one of the list is tried; the one that responded is
tried first from then on. An error response is raised, not retried elsewhere.
"""

from collections.abc import Collection
from typing import TypeVar

from tianzhou.admin.fanout import BrokerRef
from tianzhou.errors import AddressError, ConnectError, NotANameserver, RemotingError, RequestError
from tianzhou.protocol import bodies, headers
from tianzhou.protocol.acl import Credentials, sign
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command, Language
from tianzhou.remoting.address import format_address, parse_addresses
from tianzhou.remoting.client import Client
from tianzhou.remoting.tls.contexts import Tls

TIMEOUT_MS = 5_000

B = TypeVar("B")
H = TypeVar("H", bound=headers.Header)
_SUCCESS = (ResponseCode.SUCCESS,)


_ROUTES = (
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
)
"""Requests that every nameserver serves, and no other server."""


def not_a_nameserver(address: str) -> NotANameserver:
    return NotANameserver(
        f"{address} is not a nameserver but another server, such as a broker; pass the address "
        "of a nameserver, by default port 9876"
    )


class RequestClient:
    """Sends requests to nameservers and brokers. Use it on one event loop."""

    def __init__(
        self,
        namesrv: str,
        *,
        timeout_ms: int = TIMEOUT_MS,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        """`namesrv` is a list "a:9876;b:9876". Raises AddressError."""
        self.namesrvs = [format_address(*found) for found in parse_addresses(namesrv)]
        if not self.namesrvs:
            raise AddressError("no nameserver given; pass host:port, several separated by ';'")
        self.timeout_ms = timeout_ms
        self._credentials = credentials
        self._client = Client(tls=tls)

    async def close(self) -> None:
        await self._client.close()

    async def request(
        self,
        server: BrokerRef | str,
        code: RequestCode,
        header: headers.Header | None = None,
        body: bytes = b"",
        *,
        accept: Collection[int] = _SUCCESS,
        timeout_ms: int | None = None,
        language: Language = Language.PYTHON,
    ) -> Command:
        """The response of a broker, or of the server at an address.

        Raises RequestError for a response code that is not in `accept`, and RemotingError.
        """
        request = Command(
            code=code,
            ext_fields=headers.encode(header) if header is not None else None,
            body=body,
            language=language,
        )
        if self._credentials is not None:
            sign(request, self._credentials)
        address = server if isinstance(server, str) else server.address
        response = await self._client.request(address, request, timeout_ms or self.timeout_ms)
        if response.code not in accept:
            raise RequestError(response.code, response.remark or "refused without a remark")
        return response

    async def request_namesrv(
        self, code: RequestCode, header: headers.Header | None = None, body: bytes = b""
    ) -> Command:
        """The response of the first nameserver that gives one."""
        failures: list[str] = []
        for address in list(self.namesrvs):
            try:
                response = await self.request(address, code, header, body)
            except RequestError as e:
                self._prefer(address)
                if e.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and code in _ROUTES:
                    raise not_a_nameserver(address) from e
                raise
            except RemotingError as e:
                failures.append(str(e))
                continue
            self._prefer(address)
            return response
        raise ConnectError("no nameserver responds: " + "; ".join(failures))

    def _prefer(self, address: str) -> None:
        self.namesrvs.remove(address)
        self.namesrvs.insert(0, address)

    async def read(
        self,
        server: BrokerRef | str,
        body_type: type[B],
        code: RequestCode,
        header: headers.Header | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int | None = None,
    ) -> B:
        """The decoded body of the response. Also raises BodyError."""
        response = await self.request(server, code, header, body, timeout_ms=timeout_ms)
        return bodies.decode(body_type, response.body or b"{}")

    async def read_header(
        self, server: BrokerRef | str, kind: type[H], code: RequestCode, header: headers.Header
    ) -> H:
        """The decoded header of the response. Also raises FieldError."""
        return headers.decode(kind, (await self.request(server, code, header)).fields)

    async def read_namesrv(
        self, body_type: type[B], code: RequestCode, header: headers.Header | None = None
    ) -> B:
        """The decoded body of a nameserver's response."""
        return bodies.decode(body_type, (await self.request_namesrv(code, header)).body or b"{}")
