"""Keys of stock RocketMQ files that this broker does not implement, with the reason.

They are the fields of BrokerConfig, MessageStoreConfig, NettyServerConfig and NettyClientConfig of
RocketMQ 4.9 and 5.x that `config.py` does not have. `IGNORED` keys have no effect: one warning at
the start counts them, `tianzhou broker --ignored-settings` lists them. `REFUSED` keys promise
replicas, durability or data that this broker does not have: a value that asks for it stops the
start.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Refused(NamedTuple):
    """A key of which only some values are accepted."""

    accepted: tuple[str, ...]
    """In lower case; they ask for nothing."""
    why: str


_NO_SYNC_STATE_SET = (
    "with haEtcdEndpoints every replica in sync acknowledges without it; with fixed roles there is "
    "no set of replicas in sync, use brokerRole=SYNC_MASTER with inSyncReplicas"
)

REFUSED: Mapping[str, Refused] = {
    "allAckInSyncStateSet": Refused(("false",), _NO_SYNC_STATE_SET),
    "duplicationEnable": Refused(("false",), "a log with gaps is not replicated"),
    "enableRemoteEscape": Refused(("false",), "no slave acts as a master here"),
    "enableSlaveActingMaster": Refused(
        ("false",), "a slave serves reads without it (slaveReadEnable), and never acts as a master"
    ),
    "enabledAppendPropCRC": Refused(("false",), "records have a checksum of their body only"),
    "forceVerifyPropCRC": Refused(("false",), "records have a checksum of their body only"),
    "messageStorePlugIn": Refused(("",), "the store loads no plug-ins, tiered storage included"),
    "readOnlyCommitLogStorePaths": Refused(
        ("",), "the log is in one folder, so messages in these folders would not be read"
    ),
    "storeType": Refused(
        ("default",), "topics and offsets that RocketMQ stores in RocksDB would not be read"
    ),
    "wakeFlushWhenPutMessage": Refused(
        ("false",), "set flushDiskType=SYNC_FLUSH, or a shorter flushIntervalCommitLog"
    ),
}

_KEYS_BY_REASON: Mapping[str, str] = {
    "statistics are counters without tuning": """
        accountStatsEnable accountStatsPrintZeroValues autoDeleteUnusedStats commercialBaseCount
        commercialBigCount commercialEnable commercialSizePerMsg commercialTransCount enableLmqStats
        enableScheduleMessageStats estimateAccumulation maxStatsIdleTimeInMinutes
        sampleCountThreshold sampleSteps
    """,
    "one event loop serves every request": """
        ackMessageThreadPoolNums ackThreadPoolQueueCapacity adminBrokerThreadPoolNums
        adminBrokerThreadPoolQueueCapacity asyncSendEnable batchDispatchRequestThreadPoolNums
        clientAsyncSemaphoreValue clientCallbackExecutorThreads clientManagerThreadPoolQueueCapacity
        clientManageThreadPoolNums clientOnewaySemaphoreValue clientWorkerThreads
        compactionThreadNum consumerManagerThreadPoolQueueCapacity consumerManageThreadPoolNums
        disableCallbackExecutor disableNettyWorkerGroup dispatchCqCacheNum dispatchCqThreads
        enableNotifyAfterPopOrderLockRelease endTransactionPoolQueueCapacity heartbeatThreadPoolNums
        heartbeatThreadPoolQueueCapacity litePullMessageThreadPoolNums
        litePullThreadPoolQueueCapacity loadBalanceProcessorThreadPoolNums
        loadBalanceThreadPoolQueueCapacity lockInStrictMode maxAsyncPutMessageRequests
        processReplyMessageThreadPoolNums pullMessageThreadPoolNums pullThreadPoolQueueCapacity
        putMessageFutureThreadPoolNums putThreadPoolQueueCapacity queryMessageThreadPoolNums
        queryThreadPoolQueueCapacity recoverThreadPoolNums replyThreadPoolQueueCapacity
        sendMessageThreadPoolNums serverAsyncSemaphoreValue serverCallbackExecutorThreads
        serverNettyWorkerGroupEnable serverOnewaySemaphoreValue serverSelectorThreads
        serverWorkerThreads spinLockCollisionRetreatOptimalDegree timerGetMessageThreadNum
        timerPutMessageThreadNum topicQueueLockNum useABSLock useEpollNativeSelector
        useReentrantLockWhenPutMessage waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue
        waitTimeMillsInHeartbeatQueue waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue
        waitTimeMillsInTransactionQueue
    """,
    "there is no controller, DLedger or broker container": """
        brokerHeartbeatInterval brokerNotActiveTimeoutMillis
        checkSyncStateSetPeriod compatibleWithOldNameSrv controllerAddr
        controllerHeartBeatTimeoutMills dLegerGroup dLegerPeers dLegerSelfId
        enableAutoInSyncReplicas fetchControllerAddrByDnsLookup forwardTimeout
        isBrokerContainer isInBrokerContainer preferredLeaderId replicasPerDiskPartition
        sendHeartbeatTimeoutMillis skipPreOnline storePathBrokerIdentity storePathDLedgerCommitLog
        storePathEpochFile syncBrokerMemberGroupPeriod syncBrokerMetadataPeriod
        syncControllerMetadataPeriod
    """,
    "the timer has an index of its own, to the millisecond and without tuning": """
        commercialTimerCount mappedFileSizeTimerLog timerCheckMetricsWhen
        timerColdDataCheckIntervalMs timerCongestNumEachSlot timerEnableCheckMetrics
        timerEnableDisruptor timerEnableRetryUntilSuccess timerInterceptDelayLevel
        timerMetricSmallThreshold timerPrecisionMs timerProgressLogIntervalMs timerSkipUnknownError
        timerStopDequeue timerStopEnqueue timerWarmEnable
    """,
    "popped messages are in an index without such tuning": """
        appendAckAsync appendCkAsync enableNotifyBeforePopCalculateLag enablePopBatchAck
        enablePopBufferMerge enablePopLog enablePopMetrics enableSkipLongAwaitingAck
        popCkOffsetMaxQueueSize popCkStayBufferTime popCkStayBufferTimeOut popConsumerFSServiceInit
        popConsumerKVServiceEnable popConsumerKVServiceInit popConsumerKVServiceLog
        popLongPollingForceNotifyInterval popPollingMapExpireTimeSeconds popPollingMapSize
        popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead reviveAckWaitMs reviveInterval
        reviveMaxSlow reviveQueueNum reviveScanTime skipWhenCKRePutReachMaxTimes
    """,
    "replication needs no such tuning": """
        asyncLearner haMaxTimeSlaveNotCatchup maxChecksumRange maxSlaveResendLength syncFromLastFile
        syncMasterFlushOffsetWhenStartup totalReplicas
    """,
    "filters are applied to the messages themselves, without bit maps": """
        bitMapLengthConsumeQueueExt enableCalcFilterBitMap expectConsumerNumUseFilter
        filterDataCleanTimeSpan filterServerNums maxErrorRateOfBloomFilter maxFilterMessageSize
    """,
    "the store has one form, RocketMQ's files; no RocksDB, no compaction": """
        bottomMostCompressionTypeForConsumeQueueStore cleanRocksDBDirtyCQIntervalMin
        combineAssignOffsetCQType combineCQEnableCheckSelf combineCQLoadingCQTypes
        combineCQMaxExtraSearchCommitLogFiles combineCQPreferCQType compactionCqMappedFileSize
        compactionMappedFileSize compactionScheduleInternal configManagerVersion enableCompaction
        enableRocksDBLog maxOffsetMapSize memTableFlushIntervalMs realTimePersistRocksDBConfig
        rocksdbCompressionType rocksdbCQDoubleWriteEnable rocksdbFlushWalFrequency
        rocksdbWalFileRollingThreshold statRocksDBCQIntervalSec
    """,
    "the broker's own connections need no tuning": """
        channelNotActiveInterval clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout
        clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize
        connectTimeoutMillis enableReconnectForGoAway isScanAvailableNameSrv
        maxReconnectIntervalTimeSeconds socksProxyConfig
    """,
    "the store of Tianzhou needs no such tuning": """
        cleanSwapedMapInterval commitLogForceSwapMapInterval commitLogRollingInterval
        commitLogRollingMinimumSize commitLogSwapMapInterval commitLogSwapMapReserveFileNum
        correctLogicMinOffsetForceInterval correctLogicMinOffsetSleepInterval
        deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval deleteFileBatchMax
        destroyMapedFileIntervalForcibly diskFallRecorded dispatchFromSenderThread
        enableAcceleratedRecovery enableAsyncReput enableBatchPush
        enableBuildConsumeQueueConcurrently enableLogConsumeQueueRepeatedlyBuildWhenRecover
        enableRunningFlagsInFlush flushCommitLogTimed flushLeastPagesWhenWarmMapedFile
        isEnableBatchPush logicalDiskSpaceCleanForciblyThreshold logicQueueForceSwapMapInterval
        logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum mappedFileSwapEnable
        mapperFileSizeBatchConsumeQueue maxBatchDeleteFilesNum maxConsumeQueueScan
        maxRecoveryCommitlogFiles messageIndexSafe putConsumeQueueDataByFileChannel
        putMessageTimeout putMsgIndexHightWater readUnCommitted recheckReputOffsetFromCq
        recoverConcurrently redeleteHangedFileInterval searchBcqByCacheEnable
        travelCqFileNumWhenGetMessage wakeCommitWhenPutMessage warmMapedFileEnable
    """,
    "the log is written through mapped memory where no staged buffer is free": """
        fastFailIfNoBufferInStorePool writeWithoutMmap
    """,
    "delayed messages are delivered in one way, without tuning": """
        delayOffsetUpdateVersionStep enableScheduleAsyncDeliver maxDelayTime
        scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked
    """,
    "RocketMQ's metrics exporters are not in this version": """
        enableConnectionMetrics enableLagAndDlqMetrics enableMessageStoreMetrics
        enableRemotingMetrics enableRequestMetrics enableStatsMetrics enableTransactionMetrics
        metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills
        metricLoggingExporterIntervalInMills metricsGrpcExporterHeader metricsGrpcExporterTarget
        metricsInDelta metricsLabel metricsOtelCardinalityLimit transactionMetricFlushInterval
    """,
    "light queues (LMQ) are not in this version": """
        enableLmq enableMultiDispatch maxLmqConsumeQueueNum
    """,
    "the operating system sizes socket buffers": """
        serverPooledByteBufAllocatorEnable serverSocketBacklog serverSocketRcvBufSize
        serverSocketSndBufSize writeBufferHighWaterMark writeBufferLowWaterMark
    """,
    "there is no tiered storage": """
        objectStoreAccessKey objectStoreBucket objectStoreEndpoint objectStoreSecretKey
        readAheadCacheEnable readAheadCacheExpireDuration readAheadCacheSizeThresholdRate
        readAheadMessageCountThreshold readAheadMessageSizeThreshold tieredBackendServiceProvider
        tieredMetadataServiceProvider tieredStorageLevel tieredStoreCommitLogMaxSize
        tieredStoreConsumeQueueMaxSize tieredStoreCrcCheckEnable tieredStoreDeleteFileEnable
        tieredStoreDeleteFileInterval tieredStoreFilePath tieredStoreFileReservedTime
        tieredStoreGroupCommit tieredStoreGroupCommitCount tieredStoreGroupCommitSize
        tieredStoreGroupCommitTimeout tieredStoreIndexFileMaxHashSlotNum
        tieredStoreIndexFileMaxIndexNum tieredStoreMaxGroupCommitCount tieredStoreMaxPendingLimit
    """,
    "offsets of broadcasting belong to the client": """
        broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond enableBroadcastOffsetStore
    """,
    "Tianzhou needs no such tuning": """
        cleanOfflineBrokerInterval disappearTimeAfterStart enableCleanExpiredOffset
        enableCreateSysGroup enableFastChannelEventProcess enableNetWorkFlowControl
        flushConsumerOffsetHistoryInterval isolateLogEnable printChannelGroups
        printChannelGroupsMinNum recordGetMessageResult subscriptionExpiredTimeout
        useStaticSubscription
    """,
    "consumers that fall behind are not switched off": """
        consumerFallbehindThreshold disableConsumeIfConsumerReadSlowly
    """,
    "all topics are registered at once": """
        enableSingleTopicRegister enableSplitMetadata enableSplitRegistration splitMetadataSize
        splitRegistrationSize
    """,
    "nameservers are named by namesrvAddr only": """
        fetchNamesrvAddrByAddressServer fetchNameSrvAddrByDnsLookup fetchNamesrvAddrInterval
    """,
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
    "realTimeNotifyConsumerChange": "changes are always notified at once",
    "storeCheckpoint": "it lies in storePathRootDir",
    "tls.config.file": "TLS settings belong into the configuration file itself",
    "tls.server.authClient": "tls.server.need.client.auth decides alone",
    "tls.test.mode.enable": "there is no built-in test certificate",
    "transferMsgByHeap": "answers are made in one way",
    "updateNameServerAddrPeriod": "namesrvAddr is read when it changes",
    "validateSystemTopicWhenUpdateTopic": "system topics cannot be changed",
    **{key: why for why, keys in _KEYS_BY_REASON.items() for key in keys.split()},
}
"""Accepted without effect, and why."""
