"""`Admin`: the admin client of a cluster, with one attribute per subject."""

from typing import Self

from tianzhou.admin.brokers import Brokers
from tianzhou.admin.clusters import Clusters
from tianzhou.admin.groups import Groups
from tianzhou.admin.messages import Messages
from tianzhou.admin.namesrv import Namesrv
from tianzhou.admin.offsets import Offsets
from tianzhou.admin.plain_acl import Acl
from tianzhou.admin.requests import TIMEOUT_MS, RequestClient
from tianzhou.admin.topics import Topics
from tianzhou.protocol.acl import Credentials
from tianzhou.remoting.tls.contexts import Tls


class Admin:
    """An admin client of the cluster behind some nameservers. Use it on one event loop."""

    def __init__(
        self,
        namesrv: str,
        *,
        timeout_ms: int = TIMEOUT_MS,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        """`namesrv` is a list "a:9876;b:9876". Raises AddressError."""
        self.requests = RequestClient(
            namesrv, timeout_ms=timeout_ms, credentials=credentials, tls=tls
        )
        self.clusters = Clusters(self.requests)
        self.topics = Topics(self.requests, self.clusters)
        self.groups = Groups(self.requests, self.clusters)
        self.offsets = Offsets(self.requests, self.topics, self.groups)
        self.messages = Messages(self.requests, self.clusters, self.topics)
        self.brokers = Brokers(self.requests)
        self.namesrv = Namesrv(self.requests)
        self.acl = Acl(self.requests)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self.requests.close()
