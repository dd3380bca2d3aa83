"""Settings of a broker: stock files, precedence, refusals."""

import re
from pathlib import Path

import pytest

from tianzhou.broker.config import BrokerConfig, BrokerRole, load_broker_config
from tianzhou.broker.ignored_settings import IGNORED, REFUSED
from tianzhou.broker.workers import check_workers, worker_settings
from tianzhou.config.settings import Given, load, settings_of
from tianzhou.errors import ConfigError
from tianzhou.store.config import FlushDiskType

# What the distribution of RocketMQ puts into conf/2m-2s-sync/broker-a.properties, and more.
STOCK = """\
# Licensed to the Apache Software Foundation
brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
deleteWhen=04
fileReservedTime=48
brokerRole=SYNC_MASTER
flushDiskType=ASYNC_FLUSH
namesrvAddr=10.0.0.1:9876;10.0.0.2:9876
listenPort=10921
sendMessageThreadPoolNums=128
pullMessageThreadPoolNums=128
useReentrantLockWhenPutMessage=true
timerWarmEnable=false
enableLmq=false
mapedFileSizeCommitLog=1073741824
storeCheckpoint=/data/store/checkpoint
abortFile=/data/store/abort
"""


def test_a_stock_file_works_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "broker.properties"
    path.write_text(STOCK)
    loaded = load_broker_config(path, environ={})
    config = loaded.config
    assert (config.broker_name, config.listen_port) == ("broker-a", 10921)
    assert config.broker_role is BrokerRole.SYNC_MASTER
    assert config.flush_disk_type is FlushDiskType.ASYNC_FLUSH
    assert config.file_reserved_time == 48
    assert config.broker_config_path == path
    assert loaded.origins["listen_port"] == f"{path}:10"
    assert len(loaded.notes) == 7
    assert any("one event loop" in note for note in loaded.notes)
    assert [warning for warning in loaded.warnings if "mapedFileSizeCommitLog" not in warning] == []


def test_flags_override_the_environment_and_it_overrides_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broker.properties"
    path.write_text("listenPort=1\nbrokerName=file\nnamesrvAddr=file:1\n")
    environ = {
        "TIANZHOU_BROKER_LISTEN_PORT": "2",
        "TIANZHOU_BROKER_BROKER_NAME": "environment",
        "NAMESRV_ADDR": "environment:2",
    }
    loaded = load_broker_config(path, environ, [Given("listenPort", "3", "flag --port")])
    config = loaded.config
    assert (config.listen_port, config.broker_name) == (3, "environment")
    assert config.namesrv_addr == "environment:2"
    assert loaded.origins["namesrv_addr"] == "environment NAMESRV_ADDR"


ETCD = "haEtcdEndpoints=http://a:2379;http://b:2379"


@pytest.mark.parametrize(
    ("pair", "complaint"),
    [
        ("enableDLegerCommitLog=true", "no DLedger"),
        ("enableControllerMode=true", "controller"),
        ("brokerRole=SLAVE", "brokerId=0: a slave has a brokerId of 1 or more"),
        ("minInSyncReplicas=2", "use brokerRole=SYNC_MASTER with inSyncReplicas"),
        ("allAckInSyncStateSet=TRUE", "use brokerRole=SYNC_MASTER with inSyncReplicas"),
        ("enableSlaveActingMaster=true", "never acts as a master"),
        ("enableRemoteEscape=true", "no slave acts as a master"),
        ("duplicationEnable=true", "a log with gaps is not replicated"),
        ("haListenPort=65536", "0 to 65535"),
        ("slaveTimeout=0", "at least 1|from 1"),
        ("inSyncReplicas=101", "from 0 to 100"),
        ("enabledAppendPropCRC=true", "checksum"),
        ("wakeFlushWhenPutMessage=true", "SYNC_FLUSH"),
        ("storeType=defaultRocksDB", "RocksDB"),
        ("messageStorePlugIn=org.apache.rocketmq.tieredstore.TieredMessageStore", "plug-ins"),
        ("readOnlyCommitLogStorePaths=/old", "would not be read"),
        ("brokerId=1", "a master has brokerId 0"),
        ("brokerName=", "brokerName is empty"),
        ("listenPort=eleven", "'eleven' is not a whole number"),
        ("flushDiskType=SOMETIMES", "one of ASYNC_FLUSH, SYNC_FLUSH"),
    ],
)
def test_unsupported_settings_prevent_the_start_with_file_and_line(
    tmp_path: Path, pair: str, complaint: str
) -> None:
    path = tmp_path / "broker.properties"
    path.write_text(f"# comment\n{pair}\n")
    with pytest.raises(ConfigError, match=complaint) as caught:
        load_broker_config(path, environ={})
    assert f"{path}:2" in str(caught.value)


def _given(pair: str) -> Given:
    key, _, value = pair.partition("=")
    return Given(key, value, "test")


@pytest.mark.parametrize(
    ("pairs", "complaint"),
    [
        ("haEtcdEndpoints=localhost", "'localhost' is no address of etcd"),
        ("haEtcdEndpoints=http://a:1;https://b:1", "mixes http:// and https://"),
        ("haEtcdEndpoints=http://a:2379/x", "has a path"),
        ("haEtcdEndpoints=ftp://a:2379", "is no address of etcd"),
        ("haEtcdEndpoints=http://a:99999999", "Port out of range"),
        ("haEtcdEndpoints=;", "haEtcdEndpoints is empty"),
        (f"{ETCD}\nhaRoleCommand='x", "haRoleCommand is no program with arguments"),
        (f"{ETCD}\nbrokerRole=SLAVE", "brokerRole=SLAVE: .* elect their master; set ASYNC_MASTER"),
        (f"{ETCD}\nbrokerId=1", "brokerId=1: .* agree on their ids; remove the key"),
        (f"{ETCD}\nbrokerId=0", "brokerId=0: .* agree on their ids; remove the key"),
        (f"{ETCD}\nhaMasterAddress=a:1", "haMasterAddress: .* remove the key"),
        (f"{ETCD}\ntransientStorePoolEnable=true", "would be lost at a switch"),
        (f"{ETCD}\nhaLeaseSeconds=1", "from 2 to 60"),
        (f"{ETCD}\nhaEtcdUser=u", "haEtcdUser and haEtcdPassword belong together"),
        (f"{ETCD}\nhaEtcdCertFile=c", "haEtcdCertFile and haEtcdKeyFile belong together"),
        (f"{ETCD}\nhaEtcdCaFile=c", "write https://"),
        (f"{ETCD}\nhaEtcdPrefix=x", "haEtcdPrefix='x' must begin with '/'"),
        (f"{ETCD}\nhaEtcdPrefix=/", "haEtcdPrefix='/' must begin"),
        (f"{ETCD}\nbrokerName=a/b", "brokerName='a/b' contains '/'"),
        (f"{ETCD}\nbrokerClusterName=a#b", "brokerClusterName='a#b' contains"),
        (f"{ETCD}\nhaUncleanRecovery=always", "one of wait, auto"),
        ("haFenceCommand=x", "haFenceCommand is set without haEtcdEndpoints"),
        ("haLeaseSeconds=4", "haLeaseSeconds is set without haEtcdEndpoints"),
    ],
)
def test_settings_of_failover_that_contradict_each_other_prevent_the_start(
    pairs: str, complaint: str
) -> None:
    flags = [_given(pair) for pair in pairs.split("\n")]
    with pytest.raises(ConfigError, match=f"test: .*{complaint}"):
        load_broker_config(environ={}, flags=flags)


def test_failover_needs_two_replicas_in_sync_unless_fewer_are_set() -> None:
    def min_in_sync(*pairs: str) -> int:
        flags = [_given(pair) for pair in pairs]
        return load_broker_config(environ={}, flags=flags).config.min_in_sync

    assert min_in_sync() == 1
    assert min_in_sync(ETCD) == 2
    assert min_in_sync(ETCD, "minInSyncReplicas=1") == 1
    assert min_in_sync(ETCD, "minInSyncReplicas=3") == 3


def test_the_endpoints_of_etcd_are_separated_by_semicolons() -> None:
    flags = [Given("haEtcdEndpoints", " https://a:1/ ; https://b:2;", "test")]
    config = load_broker_config(environ={}, flags=flags).config
    assert config.has_failover
    endpoints = config.etcd_access.endpoints
    assert [str(each) for each in endpoints] == ["https://a:1", "https://b:2"]


@pytest.mark.parametrize("text", ["secret", '{"accessKey": "a"}', '{"accessKey": "a", "x": 1}'])
def test_a_broken_account_is_refused_without_being_shown(text: str) -> None:
    flags = [Given("innerClientAuthenticationCredentials", text, "test")]
    with pytest.raises(ConfigError, match="is no JSON object with accessKey") as caught:
        load_broker_config(environ={}, flags=flags)
    assert "secret" not in str(caught.value).replace("secretKey", "")


def test_unknown_key_suggests_the_nearest_one(tmp_path: Path) -> None:
    path = tmp_path / "broker.properties"
    path.write_text("brokerNmae=x\n")
    (warning,) = load_broker_config(path, environ={}).warnings
    assert "did you mean brokerName?" in warning


# The files of RocketMQ's conf folder have these keys in this order, and nothing else.
SAMPLE = """\
brokerClusterName=DefaultCluster
brokerName={name}
brokerId={broker_id}
deleteWhen=04
fileReservedTime=48
brokerRole={role}
flushDiskType=ASYNC_FLUSH
"""
SAMPLES = [
    ("2m-noslave/broker-a", 0, "ASYNC_MASTER"),
    ("2m-noslave/broker-trace", 0, "ASYNC_MASTER"),
    ("2m-2s-async/broker-a", 0, "ASYNC_MASTER"),
    ("2m-2s-async/broker-a-s", 1, "SLAVE"),
    ("2m-2s-async/broker-b", 0, "ASYNC_MASTER"),
    ("2m-2s-async/broker-b-s", 1, "SLAVE"),
    ("2m-2s-sync/broker-a", 0, "SYNC_MASTER"),
    ("2m-2s-sync/broker-a-s", 1, "SLAVE"),
    ("2m-2s-sync/broker-b", 0, "SYNC_MASTER"),
    ("2m-2s-sync/broker-b-s", 1, "SLAVE"),
]


@pytest.mark.parametrize(("file", "broker_id", "role"), SAMPLES)
def test_the_sample_files_of_rocketmq_load_without_a_warning(
    tmp_path: Path, file: str, broker_id: int, role: str
) -> None:
    name = file.partition("/")[2].removesuffix("-s")
    path = tmp_path / "broker.properties"
    path.write_text(SAMPLE.format(name=name, broker_id=broker_id, role=role))
    loaded = load_broker_config(path, environ={})
    config = loaded.config
    assert (config.broker_name, config.broker_id) == (name, broker_id)
    assert config.broker_role.value == role
    assert config.is_slave == (role == "SLAVE")
    assert (loaded.warnings, loaded.notes) == ((), ())


def test_a_misspelt_key_of_a_widespread_file_is_named_with_the_right_one(tmp_path: Path) -> None:
    path = tmp_path / "broker.properties"
    path.write_text(
        "brokerId=1\nbrokerRole=SLAVE\nlistenPort=11911\n"
        "deletewhen=04\nfileReserverTime=48\nflusDiskType=ASYNC_FLUSH\n"
        "storePathConsumerQueue=~/store-s/consumequeue\n"
        "storePathRootDir=~/store-s\nstorePathCommitLog=~/store-s/commitLog\n"
        "storePathIndex=~/store-s/index\n"
        "storeCheckpoint=~/store-s/checkpoint\nabortFile=~/store-s/abort\n"
    )
    loaded = load_broker_config(path, environ={})
    assert loaded.warnings == (
        f"{path}:4: unknown key deletewhen, did you mean deleteWhen?",
        f"{path}:5: unknown key fileReserverTime, did you mean fileReservedTime?",
        f"{path}:6: unknown key flusDiskType, did you mean flushDiskType?",
        f"{path}:7: unknown key storePathConsumerQueue, did you mean storePathConsumeQueue?",
    )
    config = loaded.config
    assert config.root_directory == Path.home() / "store-s"
    assert config.log_directory == Path.home() / "store-s" / "commitLog"
    assert (config.listen_port, config.ha_port) == (11911, 11912)
    assert len(loaded.notes) == 2, "storeCheckpoint and abortFile lie in storePathRootDir"


def test_settings_of_replication_have_the_names_and_defaults_of_rocketmq(tmp_path: Path) -> None:
    config = BrokerConfig()
    assert (config.slave_timeout, config.ha_slave_fallbehind_max) == (3000, 256 * 1024 * 1024)
    assert (config.ha_send_heartbeat_interval, config.ha_housekeeping_interval) == (5000, 20_000)
    assert (config.ha_transfer_batch_size, config.in_sync_replicas) == (32 * 1024, 1)
    assert not config.ha_flow_control_enable
    assert config.max_ha_transfer_byte_in_second == 100 * 1024 * 1024
    path = tmp_path / "broker.properties"
    path.write_text("haMasterAddress=10.0.0.1:10912\nhaMaxGapNotInSync=1M\nhaListenPort=7\n")
    loaded = load_broker_config(path, environ={})
    assert (loaded.warnings, loaded.notes) == ((), ())
    assert loaded.config.ha_master_address == "10.0.0.1:10912"
    assert loaded.config.ha_slave_fallbehind_max == 1024 * 1024
    assert loaded.config.ha_port == 7


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("haMasterAddress=nowhere", "haMasterAddress: address 'nowhere' has no port"),
        ("haMasterAddress=host:99999", "haMasterAddress: .*'99999' is no port"),
        ("haAllowedAddresses=10.0.0.1;10.0.0.x", "haAllowedAddresses: '10.0.0.x' is no address"),
    ],
)
def test_addresses_of_replication_that_cannot_be_any_prevent_the_start(
    tmp_path: Path, line: str, problem: str
) -> None:
    path = tmp_path / "broker.properties"
    path.write_text(f"# a comment\n{line}\n")
    with pytest.raises(ConfigError, match=f"broker.properties:2: {problem}"):
        load_broker_config(path, environ={})


def test_a_silence_shorter_than_the_heartbeats_prevents_the_start(tmp_path: Path) -> None:
    path = tmp_path / "broker.properties"
    path.write_text("haHousekeepingInterval=5000\n")
    with pytest.raises(ConfigError, match=r"properties:1: haHousekeepingInterval=5000: a slave"):
        load_broker_config(path, environ={})
    path.write_text("haHousekeepingInterval=5000\nhaSendHeartbeatInterval=4999\n")
    load_broker_config(path, environ={})


@pytest.mark.parametrize(("role", "count"), [("ASYNC_MASTER", 1), ("SYNC_MASTER", 0)])
def test_copies_that_no_send_waits_for_are_a_warning(tmp_path: Path, role: str, count: int) -> None:
    path = tmp_path / "broker.properties"
    path.write_text(f"brokerRole={role}\ninSyncReplicas=2\n")
    warnings = load_broker_config(path, environ={}).warnings
    assert len(warnings) == count
    for warning in warnings:
        assert warning.startswith(f"{path}:2: inSyncReplicas=2 has no effect: an ASYNC_MASTER")


def test_a_slave_has_no_staging_pool(tmp_path: Path) -> None:
    path = tmp_path / "broker.properties"
    path.write_text("brokerId=1\nbrokerRole=SLAVE\ntransientStorePoolEnable=true\n")
    assert not load_broker_config(path, environ={}).config.is_staged


def test_unsupported_settings_that_are_off_are_accepted() -> None:
    flags = [Given(key, value, "test") for key, each in REFUSED.items() for value in each.accepted]
    loaded = load_broker_config(environ={}, flags=flags)
    assert len(loaded.notes) == len(flags)
    assert loaded.warnings == ()


def test_the_last_value_of_a_key_decides_whether_it_is_refused() -> None:
    given = [Given("storeType", "rocks", "file"), Given("storeType", "default", "flag")]
    load_broker_config(environ={}, flags=given)
    with pytest.raises(ConfigError, match="file: storeType=rocks"):
        load_broker_config(environ={}, flags=given[::-1])


def test_no_key_is_both_used_and_without_effect() -> None:
    used = {key for declared in settings_of(BrokerConfig) for key in declared.keys}
    assert used.isdisjoint(IGNORED)
    assert used.isdisjoint(REFUSED)
    assert REFUSED.keys().isdisjoint(IGNORED)
    assert len(used) > 80
    assert len(IGNORED) > 330


def test_defaults_are_rocketmqs() -> None:
    config = BrokerConfig()
    assert (config.listen_port, config.ha_port) == (10911, 10912)
    assert config.default_topic_queue_nums == 8
    assert config.auto_create_topic_enable
    assert config.wait_time_mills_in_send_queue == 200
    assert config.flush_consumer_offset_interval == 5000
    assert config.channel_expired_timeout == 120_000
    assert not config.enable_property_filter
    assert config.max_message_size == 4 * 1024 * 1024


# -- workers ---------------------------------------------------------------------------------------


def test_workers_have_names_ports_and_stores_of_their_own(tmp_path: Path) -> None:
    base = [
        Given("brokerName", "b", "test"),
        Given("storePathRootDir", str(tmp_path / "store"), "test"),
        Given("storePathCommitLog", str(tmp_path / "log"), "test"),
    ]
    config = load(BrokerConfig, base).config
    workers = [load(BrokerConfig, [*base, *worker_settings(config, n)]).config for n in range(3)]
    assert [each.broker_name for each in workers] == ["b-0", "b-1", "b-2"]
    assert [each.listen_port for each in workers] == [10911, 10921, 10931]
    assert [each.root_directory.name for each in workers] == ["store-0", "store-1", "store-2"]
    assert [each.log_directory.name for each in workers] == ["log-0", "log-1", "log-2"]
    assert len({each.broker_config_path for each in workers}) == 3


def test_invalid_numbers_of_workers_are_refused() -> None:
    check_workers(BrokerConfig(), 4)
    for config, count in (
        (BrokerConfig(), 0),
        (BrokerConfig(), 65),
        (BrokerConfig(listen_port=65_530), 2),
    ):
        with pytest.raises(ConfigError, match="--workers"):
            check_workers(config, count)


def test_every_setting_of_replication_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "replication.md").read_text()
    keys = [each.key for each in settings_of(BrokerConfig)]
    of_replication = [
        key for key in keys if re.search("(^ha|Ha)[A-Z]", key) or "slave" in key.lower()
    ]
    of_replication += ["brokerRole", "brokerId", "brokerIP2", "inSyncReplicas"]
    assert len(of_replication) > 14
    assert [key for key in of_replication if f"`{key}`" not in page] == []
