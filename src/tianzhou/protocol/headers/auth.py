"""Headers of access control: accounts in 4.9, and until 5.2."""

from tianzhou.protocol.headers.codec import Header


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
