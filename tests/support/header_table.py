"""Header structs by request code. Requests of other codes carry no fields of their own."""

from msgspec import field

from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.headers import (
    admin,
    auth,
    clients,
    groups,
    ha,
    namesrv,
    offsets,
    pop,
    pull,
    send,
    topics,
)
from tianzhou.protocol.headers.codec import Header


class HeartbeatResponse(Header, frozen=True, kw_only=True):
    """Field of 5.x brokers: whether the next heartbeat may omit the subscriptions."""

    supports_v2: bool | None = field(default=None, name="IS_SUPPORT_HEART_BEAT_V2")
    subscription_changed: bool | None = field(default=None, name="IS_SUB_CHANGE")


REQUEST_HEADERS: dict[RequestCode, type[Header]] = {
    # -- sending ----------------------------------------------------------------------------------
    RequestCode.SEND_MESSAGE: send.SendMessageRequest,
    RequestCode.SEND_MESSAGE_V2: send.SendMessageRequestV2,
    RequestCode.SEND_BATCH_MESSAGE: send.SendMessageRequestV2,
    RequestCode.SEND_REPLY_MESSAGE: send.SendMessageRequest,
    RequestCode.SEND_REPLY_MESSAGE_V2: send.SendMessageRequestV2,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: send.PushReplyMessageRequest,
    RequestCode.CONSUMER_SEND_MSG_BACK: send.ConsumerSendMsgBackRequest,
    RequestCode.END_TRANSACTION: send.EndTransactionRequest,
    RequestCode.CHECK_TRANSACTION_STATE: send.CheckTransactionStateRequest,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: send.ResumeCheckHalfMessageRequest,
    RequestCode.RECALL_MESSAGE: send.RecallMessageRequest,
    # -- pulling and queries ----------------------------------------------------------------------
    RequestCode.PULL_MESSAGE: pull.PullMessageRequest,
    RequestCode.LITE_PULL_MESSAGE: pull.PullMessageRequest,
    RequestCode.QUERY_MESSAGE: pull.QueryMessageRequest,
    RequestCode.VIEW_MESSAGE_BY_ID: pull.ViewMessageRequest,
    RequestCode.QUERY_CONSUME_QUEUE: pull.QueryConsumeQueueRequest,
    # -- offsets ----------------------------------------------------------------------------------
    RequestCode.QUERY_CONSUMER_OFFSET: offsets.QueryConsumerOffsetRequest,
    RequestCode.UPDATE_CONSUMER_OFFSET: offsets.UpdateConsumerOffsetRequest,
    RequestCode.CLONE_GROUP_OFFSET: offsets.CloneGroupOffsetRequest,
    RequestCode.QUERY_CORRECTION_OFFSET: offsets.QueryCorrectionOffsetRequest,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: offsets.ResetOffsetRequest,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: offsets.ResetOffsetRequest,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: offsets.GetConsumerStatusRequest,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: offsets.GetConsumerStatusRequest,
    RequestCode.GET_MAX_OFFSET: offsets.GetMaxOffsetRequest,
    RequestCode.GET_MIN_OFFSET: offsets.QueueRequest,
    RequestCode.GET_EARLIEST_MSG_STORETIME: offsets.QueueRequest,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: offsets.SearchOffsetRequest,
    # -- clients ----------------------------------------------------------------------------------
    RequestCode.UNREGISTER_CLIENT: clients.UnregisterClientRequest,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: clients.ConsumerGroupRequest,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: clients.ConsumerGroupRequest,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: clients.ConsumerGroupRequest,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: clients.GetProducerConnectionListRequest,
    RequestCode.GET_CONSUMER_RUNNING_INFO: clients.GetConsumerRunningInfoRequest,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: clients.ConsumeMessageDirectlyRequest,
    # -- nameserver -------------------------------------------------------------------------------
    RequestCode.REGISTER_BROKER: namesrv.RegisterBrokerRequest,
    RequestCode.UNREGISTER_BROKER: namesrv.BrokerRequest,
    RequestCode.BROKER_HEARTBEAT: namesrv.BrokerHeartbeatRequest,
    RequestCode.QUERY_DATA_VERSION: namesrv.BrokerRequest,
    RequestCode.GET_BROKER_MEMBER_GROUP: namesrv.GetBrokerMemberGroupRequest,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: namesrv.BrokerNameRequest,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: namesrv.BrokerNameRequest,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: namesrv.GetRouteInfoRequest,
    RequestCode.GET_TOPICS_BY_CLUSTER: namesrv.GetTopicsByClusterRequest,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: namesrv.DeleteTopicFromNamesrvRequest,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: topics.TopicRequest,
    RequestCode.PUT_KV_CONFIG: namesrv.PutKVConfigRequest,
    RequestCode.GET_KV_CONFIG: namesrv.KVConfigRequest,
    RequestCode.DELETE_KV_CONFIG: namesrv.KVConfigRequest,
    RequestCode.GET_KVLIST_BY_NAMESPACE: namesrv.GetKVListRequest,
    # -- topics -----------------------------------------------------------------------------------
    RequestCode.UPDATE_AND_CREATE_TOPIC: topics.CreateTopicRequest,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: topics.CreateTopicRequest,
    RequestCode.DELETE_TOPIC_IN_BROKER: topics.TopicRequest,
    RequestCode.GET_TOPIC_CONFIG: topics.TopicRequest,
    RequestCode.GET_ALL_TOPIC_CONFIG: topics.GetAllTopicConfigRequest,
    RequestCode.GET_TOPIC_STATS_INFO: topics.TopicRequest,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: topics.TopicRequest,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: groups.GroupRequest,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: topics.QuerySubscriptionByConsumerRequest,
    RequestCode.QUERY_CONSUME_TIME_SPAN: topics.QueryConsumeTimeSpanRequest,
    # -- groups -----------------------------------------------------------------------------------
    RequestCode.DELETE_SUBSCRIPTIONGROUP: groups.DeleteSubscriptionGroupRequest,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: groups.GroupRequest,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups.GetAllSubscriptionGroupRequest,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: groups.UpdateGroupForbiddenRequest,
    RequestCode.GET_CONSUME_STATS: groups.GetConsumeStatsRequest,
    # -- brokers ----------------------------------------------------------------------------------
    RequestCode.GET_BROKER_CONSUME_STATS: admin.GetConsumeStatsInBrokerRequest,
    RequestCode.VIEW_BROKER_STATS_DATA: admin.ViewBrokerStatsDataRequest,
    # -- broker groups, replication, controller ---------------------------------------------------
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: ha.NotifyMinBrokerIdChangeRequest,
    RequestCode.EXCHANGE_BROKER_HA_INFO: ha.ExchangeHAInfoRequest,
    RequestCode.GET_ALL_CONSUMER_OFFSET: ha.TableRequest,
    RequestCode.HA_HELLO: ha.HelloRequest,
    RequestCode.CHANGE_BROKER_ROLE: ha.ChangeBrokerRoleRequest,
    RequestCode.HA_GROUP_COMMAND: ha.GroupCommandRequest,
    RequestCode.CONTROLLER_ELECT_MASTER: ha.ElectMasterRequest,
    RequestCode.RESET_MASTER_FLUSH_OFFSET: ha.ResetMasterFlushOffsetRequest,
    # -- access control ---------------------------------------------------------------------------
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: auth.CreateAccessConfigRequest,
    RequestCode.DELETE_ACL_CONFIG: auth.DeleteAccessConfigRequest,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: auth.UpdateGlobalWhiteAddrsRequest,
    # -- pop ---------------------------------------------------------------------------------------
    RequestCode.POP_MESSAGE: pop.PopMessageRequest,
    RequestCode.ACK_MESSAGE: pop.AckMessageRequest,
    RequestCode.PEEK_MESSAGE: pop.PeekMessageRequest,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: pop.ChangeInvisibleTimeRequest,
    RequestCode.NOTIFICATION: pop.NotificationRequest,
    RequestCode.POLLING_INFO: pop.PollingInfoRequest,
}

RESPONSE_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.SEND_MESSAGE: send.SendMessageResponse,
    RequestCode.SEND_MESSAGE_V2: send.SendMessageResponse,
    RequestCode.SEND_BATCH_MESSAGE: send.SendMessageResponse,
    RequestCode.SEND_REPLY_MESSAGE: send.SendMessageResponse,
    RequestCode.SEND_REPLY_MESSAGE_V2: send.SendMessageResponse,
    RequestCode.RECALL_MESSAGE: send.RecallMessageResponse,
    RequestCode.PULL_MESSAGE: pull.PullMessageResponse,
    RequestCode.LITE_PULL_MESSAGE: pull.PullMessageResponse,
    RequestCode.QUERY_MESSAGE: pull.QueryMessageResponse,
    RequestCode.GET_ALL_TOPIC_CONFIG: topics.GetAllTopicConfigResponse,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups.GetAllSubscriptionGroupResponse,
    RequestCode.QUERY_CONSUMER_OFFSET: offsets.OffsetResponse,
    RequestCode.GET_MAX_OFFSET: offsets.OffsetResponse,
    RequestCode.GET_MIN_OFFSET: offsets.OffsetResponse,
    RequestCode.GET_EARLIEST_MSG_STORETIME: offsets.GetEarliestMsgStoretimeResponse,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: offsets.OffsetResponse,
    RequestCode.HEART_BEAT: HeartbeatResponse,
    RequestCode.REGISTER_BROKER: namesrv.RegisterBrokerResponse,
    RequestCode.QUERY_DATA_VERSION: namesrv.QueryDataVersionResponse,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: namesrv.WipeWritePermResponse,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: namesrv.AddWritePermResponse,
    RequestCode.GET_KV_CONFIG: namesrv.GetKVConfigResponse,
    RequestCode.GET_BROKER_CONFIG: admin.GetBrokerConfigResponse,
    RequestCode.EXCHANGE_BROKER_HA_INFO: ha.ExchangeHAInfoResponse,
    RequestCode.GET_ALL_CONSUMER_OFFSET: ha.TableResponse,
    RequestCode.HA_HELLO: ha.HelloResponse,
    RequestCode.HA_GROUP_COMMAND: ha.GroupCommandResponse,
    RequestCode.CONTROLLER_ELECT_MASTER: ha.ElectMasterResponse,
    RequestCode.CONTROLLER_GET_METADATA_INFO: ha.GetMetadataResponse,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: auth.GetBrokerAclConfigResponse,
    RequestCode.POP_MESSAGE: pop.PopMessageResponse,
    RequestCode.PEEK_MESSAGE: pop.PopMessageResponse,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: pop.ChangeInvisibleTimeResponse,
    RequestCode.NOTIFICATION: pop.NotificationResponse,
    RequestCode.POLLING_INFO: pop.PollingInfoResponse,
}
"""By the code of the request."""
