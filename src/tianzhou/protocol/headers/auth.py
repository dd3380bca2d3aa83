"""Headers of access control: accounts in 4.9 (and until 5.2), users and policies from 5.3 on."""

from tianzhou.protocol.headers.codec import Header

# -- 4.9 ------------------------------------------------------------------------------------------


class DeleteAccessConfigRequest(Header, frozen=True, kw_only=True):
    """DELETE_ACL_CONFIG."""

    access_key: str


class CreateAccessConfigRequest(DeleteAccessConfigRequest, frozen=True, kw_only=True):
    """UPDATE_AND_CREATE_ACL_CONFIG; permissions are "topic=PUB|SUB", separated by commas."""

    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


class UpdateGlobalWhiteAddrsRequest(Header, frozen=True, kw_only=True):
    """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG."""

    global_white_addrs: str
    acl_file_full_path: str | None = None
    """RocketMQ marks it as required, but its own tool may leave it out."""


class GetBrokerAclConfigResponse(Header, frozen=True, kw_only=True):
    """GET_BROKER_CLUSTER_ACL_INFO: versions of the files, as JSON of `DataVersion`."""

    version: str
    all_acl_file_version: str | None = None
    broker_name: str
    broker_addr: str
    cluster_name: str


# -- 5.3 ------------------------------------------------------------------------------------------


class UserRequest(Header, frozen=True, kw_only=True):
    """AUTH_CREATE_USER and AUTH_UPDATE_USER (the body is a `UserInfo`), AUTH_DELETE_USER, and
    AUTH_GET_USER (the response is a `UserInfo`)."""

    username: str | None = None


class ListUsersRequest(Header, frozen=True, kw_only=True):
    """AUTH_LIST_USER; the response is a list of `UserInfo`."""

    filter: str | None = None


class AclRequest(Header, frozen=True, kw_only=True):
    """AUTH_CREATE_ACL and AUTH_UPDATE_ACL (the body is an `AclInfo`), and AUTH_GET_ACL (the
    response is an `AclInfo`)."""

    subject: str | None = None


class DeleteAclRequest(AclRequest, frozen=True, kw_only=True):
    """AUTH_DELETE_ACL."""

    policy_type: str | None = None
    resource: str | None = None


class ListAclsRequest(Header, frozen=True, kw_only=True):
    """AUTH_LIST_ACL; the response is a list of `AclInfo`."""

    subject_filter: str | None = None
    resource_filter: str | None = None
