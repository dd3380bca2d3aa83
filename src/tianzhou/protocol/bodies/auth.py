"""Access control: accounts in 4.9, and until 5.2."""

from msgspec import field

from tianzhou.protocol.bodies.codec import Body


class PlainAccessConfig(Body, frozen=True, kw_only=True):
    """One account of plain_acl.yml."""

    access_key: str | None = None
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] | None = None
    group_perms: list[str] | None = None


class AclConfig(Body, frozen=True, kw_only=True):
    """Response to GET_BROKER_CLUSTER_ACL_CONFIG."""

    global_white_addrs: list[str] | None = None
    accounts: list[PlainAccessConfig] | None = field(default=None, name="plainAccessConfigs")
