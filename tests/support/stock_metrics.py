"""Names and labels of metrics that stock dashboards query.

Of rocketmq-exporter all of them; of RocketMQ 5.x those of a broker with a plain store.
"""

from collections.abc import Mapping

_BROKER = ("cluster", "brokerIP", "broker")
_TOPIC = ("cluster", "broker", "topic")
_GROUP = ("cluster", "broker", "topic", "group")
_GROUP_NAME = ("cluster", "broker", "group")
_DIFF = ("group", "topic", "countOfOnlineConsumers", "msgModel")
_CLIENT = ("clientAddr", "clientId", "group", "topic")
_RUN = ("cluster", "brokerIP", "brokerHost", "des", "boottime", "broker_version")

_RUNTIME = """
    commitlog_disk_ratio commitlog_maxoffset commitlog_minoffset commitlogdir_capacity_free
    commitlogdir_capacity_total consumequeue_disk_ratio dispatch_behind_bytes dispatch_maxbuffer
    earliest_message_timestamp getfound_tps10 getfound_tps60 getfound_tps600
    getmessage_entire_time_max getmiss_tps10 getmiss_tps60 getmiss_tps600 gettotal_tps10
    gettotal_tps60 gettotal_tps600 gettransfered_tps10 gettransfered_tps60 gettransfered_tps600
    msg_gettotal_today_now msg_gettotal_todaymorning msg_gettotal_yesterdaymorning
    msg_put_total_today_now msg_puttotal_todaymorning msg_puttotal_yesterdaymorning
    pagecache_lock_time_mills pmdt_0ms pmdt_0to10ms pmdt_100to200ms pmdt_10stomore pmdt_10to50ms
    pmdt_1to2s pmdt_200to500ms pmdt_2to3s pmdt_3to4s pmdt_4to5s pmdt_500to1s pmdt_50to100ms
    pmdt_5to10s pull_threadpoolqueue_capacity pull_threadpoolqueue_headwait_timemills
    pull_threadpoolqueue_size put_latency_99 put_latency_999 put_message_average_size
    put_message_size_total put_tps10 put_tps60 put_tps600 putmessage_entire_time_max
    putmessage_times_total query_threadpool_queue_capacity
    query_threadpoolqueue_headwait_timemills query_threadpoolqueue_size
    remain_howmanydata_toflush remain_transientstore_buffer_numbs send_threadpool_queue_size
    send_threadpoolqueue_capacity send_threadpoolqueue_headwait_timemills
    start_accept_sendrequest_time
"""

EXPORTER: Mapping[str, tuple[str, ...]] = {
    "rocketmq_broker_commitlog_diff": _BROKER,
    "rocketmq_broker_qps": _BROKER,
    "rocketmq_broker_tps": _BROKER,
    "rocketmq_client_consume_fail_msg_count": _CLIENT,
    "rocketmq_client_consume_fail_msg_tps": _CLIENT,
    "rocketmq_client_consume_ok_msg_tps": _CLIENT,
    "rocketmq_client_consume_rt": _CLIENT,
    "rocketmq_client_consumer_pull_rt": _CLIENT,
    "rocketmq_client_consumer_pull_tps": _CLIENT,
    "rocketmq_consumer_message_size": _GROUP,
    "rocketmq_consumer_offset": _GROUP,
    "rocketmq_consumer_tps": _GROUP,
    "rocketmq_group_consume_total_offset": _GROUP,
    "rocketmq_group_consume_tps": _GROUP,
    "rocketmq_group_count": ("caddr", "localaddr", "group"),
    "rocketmq_group_diff": _DIFF,
    "rocketmq_group_dlqdiff": _DIFF,
    "rocketmq_group_get_latency_by_storetime": _GROUP,
    "rocketmq_group_retrydiff": _DIFF,
    "rocketmq_producer_count": _GROUP_NAME,
    "rocketmq_producer_message_size": _TOPIC,
    "rocketmq_producer_offset": _TOPIC,
    "rocketmq_producer_tps": _TOPIC,
    "rocketmq_send_back_nums": _GROUP,
    "rocketmq_topic_dlq_offset": _GROUP_NAME,
    "rocketmq_topic_retry_offset": _TOPIC,
} | {f"rocketmq_brokeruntime_{name}": _RUN for name in _RUNTIME.split()}
"""Labels by name."""

_NAMES_OF_5X = """
    rocketmq_broker_permission rocketmq_commit_messages_total rocketmq_consumer_connections
    rocketmq_consumer_group_create_execution_time rocketmq_consumer_group_number
    rocketmq_consumer_inflight_messages rocketmq_consumer_lag_latency
    rocketmq_consumer_lag_messages rocketmq_consumer_queueing_latency
    rocketmq_consumer_ready_messages rocketmq_delay_message_latency
    rocketmq_finish_message_latency rocketmq_half_messages rocketmq_message_size
    rocketmq_messages_in_total rocketmq_messages_out_total rocketmq_pop_buffer_scan_time_consume
    rocketmq_pop_checkpoint_buffer_size rocketmq_pop_offset_buffer_size
    rocketmq_pop_revive_in_message_total rocketmq_pop_revive_lag rocketmq_pop_revive_latency
    rocketmq_pop_revive_out_message_total rocketmq_pop_revive_retry_messages_total
    rocketmq_processor_watermark rocketmq_producer_connections rocketmq_rollback_messages_total
    rocketmq_rpc_latency rocketmq_send_to_dlq_messages_total
    rocketmq_storage_dispatch_behind_bytes rocketmq_storage_flush_behind_bytes
    rocketmq_storage_message_reserve_time rocketmq_storage_size rocketmq_throughput_in_total
    rocketmq_throughput_out_total rocketmq_timer_dequeue_lag rocketmq_timer_dequeue_latency
    rocketmq_timer_dequeue_total rocketmq_timer_enqueue_lag rocketmq_timer_enqueue_latency
    rocketmq_timer_enqueue_total rocketmq_timer_message_snapshot rocketmq_timing_messages
    rocketmq_topic_create_execution_time rocketmq_topic_number
"""
OF_5X = frozenset(_NAMES_OF_5X.split())

_ONLY_CONSUMERS = "known only to consumers"
_HISTOGRAM = "no histograms are kept"
_REVIVE = "there is no revive topic"
_POOLS = "there are no thread pools"
_WHEEL = "timed messages are in an index, not in a timer wheel"
ABSENT: dict[str, str] = {
    **{name: _ONLY_CONSUMERS for name in EXPORTER if name.startswith("rocketmq_client_")},
    **dict.fromkeys(
        (
            "rocketmq_consumer_group_create_execution_time", "rocketmq_delay_message_latency",
            "rocketmq_finish_message_latency", "rocketmq_message_size", "rocketmq_rpc_latency",
            "rocketmq_topic_create_execution_time",
        ),
        _HISTOGRAM,
    ),
    **{name: _REVIVE for name in OF_5X if name.startswith("rocketmq_pop_")},
    "rocketmq_processor_watermark": _POOLS,
    "rocketmq_timer_message_snapshot": _WHEEL,
}  # fmt: skip
"""Metrics that a Tianzhou broker does not export, and why; docs/admin.md says the same."""
