"""Access control: accounts in 4.9 (and until 5.2), users and policies from 5.3 on."""

from msgspec import field

from tianzhou.protocol.bodies.codec import Body

# -- 4.9 ------------------------------------------------------------------------------------------


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


# -- 5.3 ------------------------------------------------------------------------------------------


class UserInfo(Body, frozen=True, kw_only=True):
    """A user."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


class PolicyEntryInfo(Body, frozen=True, kw_only=True):
    """What is allowed or denied on one resource."""

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


class PolicyInfo(Body, frozen=True, kw_only=True):
    """A policy: CUSTOM, or DEFAULT where no custom one speaks."""

    policy_type: str | None = None
    entries: list[PolicyEntryInfo] | None = None


class AclInfo(Body, frozen=True, kw_only=True):
    """The policies of a subject, "User:name"."""

    subject: str | None = None
    policies: list[PolicyInfo] | None = None
