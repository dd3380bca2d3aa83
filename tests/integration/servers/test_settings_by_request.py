"""Settings that a request may change.

Without access control requests come from any host, so the lists below are the surface of both
programs: a setting that becomes changeable by a request must be added here by hand.
"""

import re
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from tests.support.brokers import cluster, peer_of, running_broker
from tests.support.namesrv import Broker, namesrv

from tianzhou.broker.config import BrokerConfig
from tianzhou.config.settings import Change, Configuration, Setting, format_value, settings_of
from tianzhou.namesrv.config import NamesrvConfig
from tianzhou.protocol.acl import Credentials
from tianzhou.protocol.codes import RequestCode, ResponseCode

SENSITIVE_NAME = re.compile(
    r"(^|_)(path|file|dir|home|folder|tls|bind|host|port|addr|address|ip[12]|log|acl|credentials"
    r"|binding|bindings|black|flush|commit|disk|delete|clean|reserved|role|crc|transient|health"
    r"|exporter|dleger|controller|broker_id|broker_name|cluster_name|wait_for_service)(_|$)"
)
NOT_SENSITIVE = {
    "wait_seconds_for_service",  # bounded, and of no effect without needWaitForService
    # How many messages one read returns from disk.
    "max_transfer_bytes_on_message_in_disk", "max_transfer_count_on_message_in_disk",
}  # fmt: skip
BY_ANY_REQUEST: dict[type[Configuration], set[str]] = {
    NamesrvConfig: {
        "shutdownWaitTimeSeconds", "supportActingMaster",
        "orderMessageEnable", "returnOrderTopicConfigToBroker", "waitSecondsForService",
        "enableAllTopicList", "enableTopicList",
    },
    BrokerConfig: {
        "regionId", "shutdownWaitTimeSeconds", "registerNameServerPeriod",
        "registerBrokerTimeoutMills", "compressedRegister", "defaultTopicQueueNums",
        "autoCreateTopicEnable", "autoCreateSubscriptionGroup", "clusterTopicEnable",
        "brokerTopicEnable", "brokerPermission", "traceTopicEnable", "brokerFastFailureEnable",
        "waitTimeMillsInSendQueue", "osPageCacheBusyTimeOutMills", "sendThreadPoolQueueCapacity",
        "startAcceptSendRequestTimeStamp", "traceOn", "rejectTransactionMessage",
        "transactionOpMsgMaxSize", "storeReplyMessageEnable",
        "timerMaxDelaySec", "timerRollWindowSlot",
        "recallMessageEnable", "allowRecallWhenBrokerNotWriteable", "longPollingEnable",
        "shortPollingTimeMills", "maxParkedPulls", "pullBatchMaxMessageCount", "slaveReadEnable",
        "offsetCheckInSlave",
        "enableMixedMessageType", "enablePropertyFilter", "rejectPullConsumerEnable",
        "litePullMessageEnable", "enableRetryTopicV2", "retrieveMessageFromPopRetryTopicV1",
        "popFromRetryProbability", "popResponseReturnActualRetryTopic",
        "initPopOffsetByCheckMsgInMem", "enablePopMessageThreshold", "popInflightMessageThreshold",
        "popCkMaxBufferSize", "maxPopPollingSize", "popPollingSize", "defaultMessageRequestMode",
        "defaultPopShareQueueNum", "serverLoadBalancerEnable", "loadBalancePollNameServerInterval",
        "useServerSideResetOffset", "notifyConsumerIdsChangedEnable",
        "enableDetailStat", "slowRequestThresholdMills", "maxMessageSize",
        "maxTransferBytesOnMessageInMemory", "maxTransferCountOnMessageInMemory",
        "maxTransferBytesOnMessageInDisk", "maxTransferCountOnMessageInDisk",
        "accessMessageInMemoryMaxRatio", "maxMsgsNumBatch",
    },
}  # fmt: skip
BY_ADMINISTRATORS: dict[type[Configuration], set[str]] = {
    NamesrvConfig: {
        "brokerChannelExpiredTime", "scanNotActiveBrokerInterval",
        "deleteTopicWithBrokerRegistration",
        "notifyMinBrokerIdChanged",  # the nameserver connects to addresses that brokers registered
    },
    BrokerConfig: {
        "namesrvAddr", "groupTopicBindingEnable", "groupTopicBindings", "fileReservedTime",
        "deleteWhen", "diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio",
        "diskSpaceWarningLevelRatio", "cleanFileForciblyEnable",
        # Small values discard transactions, lock a queue twice, or drop every client.
        "transactionTimeOut", "transactionCheckMax", "transactionCheckInterval",
        "rocketmq.broker.rebalance.lockMaxLiveTime", "channelExpiredTimeout",
        "transactionOpBatchInterval",  # a crash loses pending ends
        "haEtcdEndpoints", "haEtcdUser", "haEtcdPassword", "haEtcdCaFile", "haEtcdCertFile",
        "haEtcdKeyFile",
    },
}  # fmt: skip
PROGRAMS = (NamesrvConfig, BrokerConfig)
BY_REQUEST = (Change.RESTART, Change.LIVE)


def keys_of(program: type[Configuration], test: Callable[[Setting], bool]) -> set[str]:
    return {each.key for each in settings_of(program) if test(each)}


def another_value(setting: Setting, now: object) -> str:
    """A valid value for the setting, other than the current one."""
    kind: type[Any] = setting.kind
    if kind is bool:
        return format_value(not now)
    if issubclass(kind, Enum):
        return format_value(next(each for each in kind if each is not now))
    if kind in (int, float):
        low, high = setting.minimum or 0, setting.maximum
        return str(next(n for n in (low + 1, low + 2) if n != now and (not high or n <= high)))
    return "/nowhere/else" if kind is Path else "127.0.0.1:1"


@pytest.mark.parametrize("program", PROGRAMS)
def test_settings_that_any_request_may_change_are_listed(program: type[Configuration]) -> None:
    assert keys_of(program, lambda each: each.change in BY_REQUEST) == BY_ANY_REQUEST[program]
    admin = keys_of(program, lambda each: each.change is Change.ADMIN)
    assert admin == BY_ADMINISTRATORS[program]


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_path_address_certificate_or_safety_switch_is_listed(
    program: type[Configuration],
) -> None:
    exposed = {
        each.key
        for each in settings_of(program)
        if each.change in BY_REQUEST
        and each.name not in NOT_SENSITIVE
        and (each.kind is Path or each.secret or SENSITIVE_NAME.search(each.name))
    }
    assert exposed == set()


@pytest.mark.parametrize("program", PROGRAMS)
def test_numbers_that_a_request_may_change_have_a_minimum_and_a_maximum(
    program: type[Configuration],
) -> None:
    """Neither a negative size nor one that uses all memory."""
    unbounded = {
        each.key
        for each in settings_of(program)
        if each.change in (*BY_REQUEST, Change.ADMIN)
        and (each.kind in (int, float) or (each.kind is str and each.change in BY_REQUEST))
        and (each.minimum is None or each.maximum is None)
    }
    assert unbounded == {"startAcceptSendRequestTimeStamp"} & keys_of(program, lambda _: True)


async def test_broker_without_access_control_refuses_unlisted_settings(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        config = it.broker.settings.config
        before = (await it.peer.expect(RequestCode.GET_BROKER_CONFIG)).body
        for setting in settings_of(BrokerConfig):
            if setting.change in BY_REQUEST:
                continue
            value = another_value(setting, getattr(config, setting.name))
            for key in setting.keys:
                # A valid setting in the same request must not be applied, either.
                body = f"traceOn=false\n{key}={value}\n".encode()
                answer = await it.peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, body)
                assert answer.code != ResponseCode.SUCCESS, key
                assert key in (answer.remark or "")
                assert re.search("restart the server|shapes files", answer.remark or ""), key
        assert (await it.peer.expect(RequestCode.GET_BROKER_CONFIG)).body == before
        assert not (tmp_path / "store" / "b.properties").exists()


async def test_nameserver_without_accounts_refuses_unlisted_settings(tmp_path: Path) -> None:
    async with namesrv(tmp_path) as asker:
        await Broker().register(asker)
        before = (await asker.get(RequestCode.GET_NAMESRV_CONFIG)).body
        for setting in settings_of(NamesrvConfig):
            if setting.change in BY_REQUEST:
                continue
            for key in setting.keys:
                body = f"orderMessageEnable=true\n{key}={another_value(setting, None)}\n".encode()
                answer = await asker.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
                assert answer.code == ResponseCode.NO_PERMISSION, key
                assert key in (answer.remark or "")
                assert "restart the server" in (answer.remark or "")
        assert (await asker.get(RequestCode.GET_NAMESRV_CONFIG)).body == before
        assert not (tmp_path / "namesrv.properties").exists()


async def test_settings_changes_of_a_nameserver_remove_no_routes(tmp_path: Path) -> None:
    async with namesrv(tmp_path) as asker:
        await Broker().register(asker)
        for setting in settings_of(NamesrvConfig):
            for value in ("true", "false", "0", "1", "600", "2147483647", "x"):
                body = f"{setting.key}={value}".encode()
                await asker.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
                assert await asker.route("orders") is not None, (setting.key, value)


@pytest.mark.parametrize(
    "pair",
    [
        "maxMessageSize=-1", "maxMessageSize=9999999999999", "maxTransferCountOnMessageInMemory=0",
        "maxTransferBytesOnMessageInMemory=1T", "sendThreadPoolQueueCapacity=0",
        "waitTimeMillsInSendQueue=9223372036854775807", "registerBrokerTimeoutMills=1",
        "osPageCacheBusyTimeOutMills=1", "popCkMaxBufferSize=99999999999", "brokerPermission=8",
        "pullBatchMaxMessageCount=2147483647", "regionId=a\\u0001PROPERTY",
        "regionId=" + "x" * 256,
    ],
)  # fmt: skip
async def test_harmful_values_of_live_settings_are_refused(tmp_path: Path, pair: str) -> None:
    async with running_broker(tmp_path) as broker, peer_of(broker.address) as peer:
        answer = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, pair.encode())
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert pair.partition("=")[0] in (answer.remark or "")
        assert not (tmp_path / "b.properties").exists()


async def test_with_access_control_an_administrator_changes_live_settings(tmp_path: Path) -> None:
    (tmp_path / "acl.yml").write_text(
        "accounts: [{accessKey: operations, secretKey: 12345678, admin: true}]\n"
    )
    secured = {"aclEnable": "true", "aclFile": tmp_path / "acl.yml"}
    account = Credentials("operations", "12345678")
    async with (
        running_broker(tmp_path / "s", **secured) as broker,
        peer_of(broker.address, credentials=account) as peer,
    ):
        code = RequestCode.UPDATE_BROKER_CONFIG
        await peer.expect(code, None, b"fileReservedTime=48\ntraceOn=false")
        assert "fileReservedTime=48" in (tmp_path / "s" / "b.properties").read_text()
        for pair in (b"storePathRootDir=/x", b"aclEnable=false", b"logFile=/x"):
            assert (await peer.ask(code, None, pair)).code == ResponseCode.NO_PERMISSION
