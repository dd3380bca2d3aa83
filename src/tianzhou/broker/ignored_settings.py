"""Keys of stock RocketMQ files that this broker does not implement, with the reason.

They are the fields of BrokerConfig, MessageStoreConfig, NettyServerConfig and NettyClientConfig of
RocketMQ 4.9 and 5.x that `config.py` does not have. `IGNORED` keys have no effect: one warning at
the start counts them, `tianzhou broker --ignored-settings` lists them. `REFUSED` keys promise
replicas, durability or data that this broker does not have: a value that asks for it stops the
start.
"""

from collections.abc import Mapping
from typing import NamedTuple

_ONE_LOOP = "one event loop serves every request"
_OWN_POP = "what is popped is kept in an index of Tianzhou's own, without tuning"
_OWN_TIMER = "the timer has an index of its own, to the millisecond and without tuning"
_NO_TIERS = "there is no tiered storage"
_OTHER_STORE = "the store has one form, RocketMQ's files; no RocksDB, no compaction"
_NO_CONTROLLER = "there is no controller, DLedger or broker container"
_NO_REPLICATION = "replication is not in this version"
_NO_METRICS = "RocketMQ's metrics exporters are not in this version"
_OWN_STATS = "statistics are counters without tuning"
_NO_COLD = "cold data is not watched"
_NO_LMQ = "light queues (LMQ) are not in this version"
_NO_BITMAPS = "filters are applied to the messages themselves, no bit maps are kept"
_NO_STAGING = "the log is written through mapped memory where no staged buffer is free"
_OWN_STORE = "the store of Tianzhou needs no such tuning"
_NO_CLIENT = "the broker's own connections need no tuning"
_KERNEL_SIZES = "the operating system sizes socket buffers"
_OWN_DELAY = "delayed messages are delivered in one way, without tuning"


class Refused(NamedTuple):
    """A key of which only some values are accepted."""

    accepted: tuple[str, ...]
    """In lower case; they ask for nothing."""
    why: str


_ONE_REPLICA = "this version keeps one replica, so no more than one can acknowledge a message"
_ROCKSDB = "topics and offsets that RocketMQ keeps in RocksDB would not be read"

REFUSED: Mapping[str, Refused] = {
    "allAckInSyncStateSet": Refused(("false",), _ONE_REPLICA),
    "duplicationEnable": Refused(("false",), _NO_REPLICATION),
    "enableRemoteEscape": Refused(("false",), _NO_REPLICATION),
    "enableSlaveActingMaster": Refused(("false",), _NO_REPLICATION),
    "enabledAppendPropCRC": Refused(("false",), "records have a checksum of their body only"),
    "forceVerifyPropCRC": Refused(("false",), "records have a checksum of their body only"),
    "inSyncReplicas": Refused(("0", "1"), _ONE_REPLICA),
    "messageStorePlugIn": Refused(("",), "the store loads no plug-ins, tiered storage included"),
    "minInSyncReplicas": Refused(("0", "1"), _ONE_REPLICA),
    "readOnlyCommitLogStorePaths": Refused(
        ("",), "the log is in one folder, so messages in these folders would not be read"
    ),
    "storeType": Refused(("default",), _ROCKSDB),
    "totalReplicas": Refused(("0", "1"), _ONE_REPLICA),
    "wakeFlushWhenPutMessage": Refused(
        ("false",), "set flushDiskType=SYNC_FLUSH, or a shorter flushIntervalCommitLog"
    ),
}

IGNORED: Mapping[str, str] = {
    "abortFile": "it lies in storePathRootDir",
    "autoMessageVersionOnTopicLen": "long topics are always stored in the second form",
    "checkTransactionMessageEnable": "open transactions are always checked",
    "clearRetryTopicWhenDeleteTopic": "retry topics belong to groups and stay",
    "consumerOffsetUpdateVersionStep": "the offset table has no version of its own",
    "dataReadAheadEnable": "the operating system reads ahead",
    "debugLockEnable": "the store has one writer and no lock to watch",
    "defaultQueryMaxNum": "a query says how many messages it wants; maxMsgsNumBatch bounds it",
    "enableRegisterProducer": "producers are always registered",
    "enableShutdownGracefully": "a stop is always graceful",
    "filterSupportRetry": "retries are subscribed to with *, as clients do",
    "forceRegister": "every registration is sent",
    "highSpeedMode": "there is one speed",
    "maxTopicLength": "topic names have at most 127 characters",
    "realTimeNotifyConsumerChange": "changes are always told at once",
    "storeCheckpoint": "it lies in storePathRootDir",
    "tls.config.file": "TLS settings belong into the configuration file itself",
    "tls.server.authClient": "tls.server.need.client.auth decides alone",
    "tls.test.mode.enable": "there is no built-in test certificate",
    "transferMsgByHeap": "answers are made in one way",
    "updateNameServerAddrPeriod": "namesrvAddr is read when it changes",
    "validateSystemTopicWhenUpdateTopic": "system topics cannot be changed",
    **dict.fromkeys(
        (
            "accountStatsEnable", "accountStatsPrintZeroValues", "autoDeleteUnusedStats",
            "commercialBaseCount", "commercialBigCount", "commercialEnable",
            "commercialSizePerMsg", "commercialTransCount",
            "enableLmqStats", "enableScheduleMessageStats", "estimateAccumulation",
            "maxStatsIdleTimeInMinutes", "sampleCountThreshold", "sampleSteps",
        ),
        _OWN_STATS,
    ),
    **dict.fromkeys(
        (
            "ackMessageThreadPoolNums", "ackThreadPoolQueueCapacity",
            "adminBrokerThreadPoolNums", "adminBrokerThreadPoolQueueCapacity",
            "asyncSendEnable", "batchDispatchRequestThreadPoolNums",
            "clientAsyncSemaphoreValue", "clientCallbackExecutorThreads",
            "clientManageThreadPoolNums", "clientManagerThreadPoolQueueCapacity",
            "clientOnewaySemaphoreValue", "clientWorkerThreads", "compactionThreadNum",
            "consumerManageThreadPoolNums", "consumerManagerThreadPoolQueueCapacity",
            "disableCallbackExecutor", "disableNettyWorkerGroup", "dispatchCqCacheNum",
            "dispatchCqThreads", "enableNotifyAfterPopOrderLockRelease",
            "endTransactionPoolQueueCapacity", "heartbeatThreadPoolNums",
            "heartbeatThreadPoolQueueCapacity", "litePullMessageThreadPoolNums",
            "litePullThreadPoolQueueCapacity", "loadBalanceProcessorThreadPoolNums",
            "loadBalanceThreadPoolQueueCapacity", "lockInStrictMode",
            "maxAsyncPutMessageRequests", "processReplyMessageThreadPoolNums",
            "pullMessageThreadPoolNums", "pullThreadPoolQueueCapacity",
            "putMessageFutureThreadPoolNums", "putThreadPoolQueueCapacity",
            "queryMessageThreadPoolNums", "queryThreadPoolQueueCapacity",
            "recoverThreadPoolNums", "replyThreadPoolQueueCapacity",
            "sendMessageThreadPoolNums", "serverAsyncSemaphoreValue",
            "serverCallbackExecutorThreads", "serverNettyWorkerGroupEnable",
            "serverOnewaySemaphoreValue", "serverSelectorThreads", "serverWorkerThreads",
            "spinLockCollisionRetreatOptimalDegree", "timerGetMessageThreadNum",
            "timerPutMessageThreadNum", "topicQueueLockNum", "useABSLock",
            "useEpollNativeSelector", "useReentrantLockWhenPutMessage",
            "waitTimeMillsInAckQueue", "waitTimeMillsInAdminBrokerQueue",
            "waitTimeMillsInHeartbeatQueue", "waitTimeMillsInLitePullQueue",
            "waitTimeMillsInPullQueue", "waitTimeMillsInTransactionQueue",
        ),
        _ONE_LOOP,
    ),
    **dict.fromkeys(
        (
            "brokerElectionPriority", "brokerHeartbeatInterval",
            "brokerNotActiveTimeoutMillis", "checkSyncStateSetPeriod",
            "compatibleWithOldNameSrv", "controllerAddr", "controllerHeartBeatTimeoutMills",
            "dLegerGroup", "dLegerPeers", "dLegerSelfId", "enableAutoInSyncReplicas",
            "fetchControllerAddrByDnsLookup",
            "forwardTimeout", "haMaxGapNotInSync", "isBrokerContainer",
            "isInBrokerContainer", "preferredLeaderId",
            "replicasPerDiskPartition", "sendHeartbeatTimeoutMillis", "skipPreOnline",
            "storePathBrokerIdentity", "storePathDLedgerCommitLog", "storePathEpochFile",
            "syncBrokerMemberGroupPeriod", "syncBrokerMetadataPeriod",
            "syncControllerMetadataPeriod",
        ),
        _NO_CONTROLLER,
    ),
    **dict.fromkeys(
        (
            "commercialTimerCount", "mappedFileSizeTimerLog", "timerCheckMetricsWhen",
            "timerColdDataCheckIntervalMs", "timerCongestNumEachSlot",
            "timerEnableCheckMetrics", "timerEnableDisruptor", "timerEnableRetryUntilSuccess",
            "timerInterceptDelayLevel", "timerMetricSmallThreshold", "timerPrecisionMs",
            "timerProgressLogIntervalMs", "timerSkipUnknownError", "timerStopDequeue",
            "timerStopEnqueue", "timerWarmEnable",
        ),
        _OWN_TIMER,
    ),
    **dict.fromkeys(
        (
            "appendAckAsync", "appendCkAsync", "enableNotifyBeforePopCalculateLag",
            "enablePopBatchAck", "enablePopBufferMerge", "enablePopLog", "enablePopMetrics",
            "enableSkipLongAwaitingAck", "popCkOffsetMaxQueueSize",
            "popCkStayBufferTime", "popCkStayBufferTimeOut", "popConsumerFSServiceInit",
            "popConsumerKVServiceEnable", "popConsumerKVServiceInit", "popConsumerKVServiceLog",
            "popLongPollingForceNotifyInterval", "popPollingMapExpireTimeSeconds",
            "popPollingMapSize", "popReviveMaxAttemptTimes", "popReviveMaxReturnSizePerRead",
            "reviveAckWaitMs", "reviveInterval", "reviveMaxSlow", "reviveQueueNum",
            "reviveScanTime", "skipWhenCKRePutReachMaxTimes",
        ),
        _OWN_POP,
    ),
    **dict.fromkeys(
        (
            "asyncLearner", "haFlowControlEnable",
            "haHousekeepingInterval", "haMasterAddress", "haMaxTimeSlaveNotCatchup",
            "haSendHeartbeatInterval", "haSlaveFallbehindMax", "haTransferBatchSize",
            "maxChecksumRange", "maxHaTransferByteInSecond", "maxSlaveResendLength",
            "offsetCheckInSlave", "slaveTimeout", "syncFromLastFile",
            "syncMasterFlushOffsetWhenStartup",
        ),
        _NO_REPLICATION,
    ),
    **dict.fromkeys(
        (
            "bitMapLengthConsumeQueueExt", "enableCalcFilterBitMap",
            "expectConsumerNumUseFilter", "filterDataCleanTimeSpan", "filterServerNums",
            "maxErrorRateOfBloomFilter", "maxFilterMessageSize",
        ),
        _NO_BITMAPS,
    ),
    **dict.fromkeys(
        (
            "bottomMostCompressionTypeForConsumeQueueStore", "cleanRocksDBDirtyCQIntervalMin",
            "combineAssignOffsetCQType", "combineCQEnableCheckSelf", "combineCQLoadingCQTypes",
            "combineCQMaxExtraSearchCommitLogFiles", "combineCQPreferCQType",
            "compactionCqMappedFileSize", "compactionMappedFileSize",
            "compactionScheduleInternal", "configManagerVersion", "enableCompaction",
            "enableRocksDBLog", "maxOffsetMapSize", "memTableFlushIntervalMs",
            "realTimePersistRocksDBConfig", "rocksdbCQDoubleWriteEnable",
            "rocksdbCompressionType", "rocksdbFlushWalFrequency",
            "rocksdbWalFileRollingThreshold", "statRocksDBCQIntervalSec",
        ),
        _OTHER_STORE,
    ),
    **dict.fromkeys(
        (
            "channelNotActiveInterval", "clientChannelMaxIdleTimeSeconds",
            "clientCloseSocketIfTimeout", "clientPooledByteBufAllocatorEnable",
            "clientSocketRcvBufSize", "clientSocketSndBufSize", "connectTimeoutMillis",
            "enableReconnectForGoAway", "isScanAvailableNameSrv",
            "maxReconnectIntervalTimeSeconds", "socksProxyConfig",
        ),
        _NO_CLIENT,
    ),
    **dict.fromkeys(
        (
            "cleanSwapedMapInterval", "commitLogForceSwapMapInterval",
            "commitLogRollingInterval", "commitLogRollingMinimumSize",
            "commitLogSwapMapInterval", "commitLogSwapMapReserveFileNum",
            "correctLogicMinOffsetForceInterval", "correctLogicMinOffsetSleepInterval",
            "deleteCommitLogFilesInterval", "deleteConsumeQueueFilesInterval",
            "deleteFileBatchMax", "destroyMapedFileIntervalForcibly", "diskFallRecorded",
            "dispatchFromSenderThread", "enableAcceleratedRecovery", "enableAsyncReput",
            "enableBatchPush", "enableBuildConsumeQueueConcurrently",
            "enableLogConsumeQueueRepeatedlyBuildWhenRecover", "enableRunningFlagsInFlush",
            "flushCommitLogTimed", "flushLeastPagesWhenWarmMapedFile",
            "isEnableBatchPush", "logicQueueForceSwapMapInterval",
            "logicQueueSwapMapInterval", "logicQueueSwapMapReserveFileNum",
            "logicalDiskSpaceCleanForciblyThreshold", "mappedFileSwapEnable",
            "mapperFileSizeBatchConsumeQueue", "maxBatchDeleteFilesNum", "maxConsumeQueueScan",
            "maxRecoveryCommitlogFiles", "messageIndexSafe", "putConsumeQueueDataByFileChannel",
            "putMessageTimeout", "putMsgIndexHightWater", "readUnCommitted",
            "recheckReputOffsetFromCq", "recoverConcurrently", "redeleteHangedFileInterval",
            "searchBcqByCacheEnable", "travelCqFileNumWhenGetMessage",
            "wakeCommitWhenPutMessage", "warmMapedFileEnable",
        ),
        _OWN_STORE,
    ),
    **dict.fromkeys(
        ("fastFailIfNoBufferInStorePool", "writeWithoutMmap"),
        _NO_STAGING,
    ),
    **dict.fromkeys(
        (
            "delayOffsetUpdateVersionStep", "enableScheduleAsyncDeliver", "maxDelayTime",
            "scheduleAsyncDeliverMaxPendingLimit", "scheduleAsyncDeliverMaxResendNum2Blocked",
        ),
        _OWN_DELAY,
    ),
    **dict.fromkeys(
        (
            "enableConnectionMetrics", "enableLagAndDlqMetrics", "enableMessageStoreMetrics",
            "enableRemotingMetrics", "enableRequestMetrics", "enableStatsMetrics",
            "metricGrpcExporterIntervalInMills", "metricGrpcExporterTimeOutInMills",
            "metricLoggingExporterIntervalInMills",
            "metricsGrpcExporterHeader", "metricsGrpcExporterTarget", "metricsInDelta",
            "metricsLabel", "metricsOtelCardinalityLimit",
        ),
        _NO_METRICS,
    ),
    **dict.fromkeys(
        (
            "enableLmq", "enableMultiDispatch", "maxLmqConsumeQueueNum",
        ),
        _NO_LMQ,
    ),
    **dict.fromkeys(
        (
            "serverPooledByteBufAllocatorEnable", "serverSocketBacklog",
            "serverSocketRcvBufSize", "serverSocketSndBufSize", "writeBufferHighWaterMark",
            "writeBufferLowWaterMark",
        ),
        _KERNEL_SIZES,
    ),
    **dict.fromkeys(
        (
            "enableTransactionMetrics", "transactionMetricFlushInterval",
        ),
        _NO_METRICS,
    ),
    **dict.fromkeys(
        (
            "objectStoreAccessKey", "objectStoreBucket", "objectStoreEndpoint",
            "objectStoreSecretKey", "readAheadCacheEnable", "readAheadCacheExpireDuration",
            "readAheadCacheSizeThresholdRate", "readAheadMessageCountThreshold",
            "readAheadMessageSizeThreshold", "tieredBackendServiceProvider",
            "tieredMetadataServiceProvider", "tieredStorageLevel",
            "tieredStoreCommitLogMaxSize", "tieredStoreConsumeQueueMaxSize",
            "tieredStoreCrcCheckEnable", "tieredStoreDeleteFileEnable",
            "tieredStoreDeleteFileInterval", "tieredStoreFilePath",
            "tieredStoreFileReservedTime", "tieredStoreGroupCommit",
            "tieredStoreGroupCommitCount", "tieredStoreGroupCommitSize",
            "tieredStoreGroupCommitTimeout", "tieredStoreIndexFileMaxHashSlotNum",
            "tieredStoreIndexFileMaxIndexNum", "tieredStoreMaxGroupCommitCount",
            "tieredStoreMaxPendingLimit",
        ),
        _NO_TIERS,
    ),
    **dict.fromkeys(
        (
            "broadcastOffsetExpireMaxSecond", "broadcastOffsetExpireSecond",
            "enableBroadcastOffsetStore",
        ),
        "offsets of broadcasting belong to the client",
    ),
    **dict.fromkeys(
        (
            "cleanOfflineBrokerInterval", "disappearTimeAfterStart", "enableCleanExpiredOffset",
            "enableCreateSysGroup", "enableFastChannelEventProcess", "enableNetWorkFlowControl",
            "flushConsumerOffsetHistoryInterval", "isolateLogEnable", "printChannelGroups",
            "printChannelGroupsMinNum", "recordGetMessageResult", "subscriptionExpiredTimeout",
            "useStaticSubscription",
        ),
        "Tianzhou needs no such tuning",
    ),
    **dict.fromkeys(
        (
            "consumerFallbehindThreshold", "disableConsumeIfConsumerReadSlowly",
        ),
        "consumers that fall behind are not switched off",
    ),
    **dict.fromkeys(
        (
            "enableSingleTopicRegister", "enableSplitMetadata", "enableSplitRegistration",
            "splitMetadataSize", "splitRegistrationSize",
        ),
        "all topics are registered at once",
    ),
    **dict.fromkeys(
        (
            "fetchNameSrvAddrByDnsLookup", "fetchNamesrvAddrByAddressServer",
            "fetchNamesrvAddrInterval",
        ),
        "nameservers are named by namesrvAddr only",
    ),
}  # fmt: skip
"""Accepted without effect, and why."""
