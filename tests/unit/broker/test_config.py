"""Settings of a broker: stock files, precedence, refusals."""

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


@pytest.mark.parametrize(
    ("pair", "complaint"),
    [
        ("enableDLegerCommitLog=true", "no DLedger"),
        ("enableControllerMode=true", "controller"),
        ("brokerRole=SLAVE", "cannot replicate"),
        ("totalReplicas=3", "one replica"),
        ("inSyncReplicas=2", "one replica"),
        ("minInSyncReplicas=2", "one replica"),
        ("allAckInSyncStateSet=TRUE", "one replica"),
        ("enableSlaveActingMaster=true", "replication"),
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


def test_unsupported_settings_that_are_off_are_accepted() -> None:
    flags = [Given(key, value, "test") for key, each in REFUSED.items() for value in each.accepted]
    loaded = load_broker_config(environ={}, flags=flags)
    assert len(loaded.notes) == len(flags)
    assert loaded.warnings == ()


def test_the_last_value_of_a_key_decides_whether_it_is_refused() -> None:
    given = [Given("inSyncReplicas", "2", "file"), Given("inSyncReplicas", "1", "flag")]
    load_broker_config(environ={}, flags=given)
    with pytest.raises(ConfigError, match="file: inSyncReplicas=2"):
        load_broker_config(environ={}, flags=given[::-1])


def test_no_key_is_both_used_and_without_effect() -> None:
    used = {key for declared in settings_of(BrokerConfig) for key in declared.keys}
    assert used.isdisjoint(IGNORED)
    assert used.isdisjoint(REFUSED)
    assert REFUSED.keys().isdisjoint(IGNORED)
    assert len(used) > 80
    assert len(IGNORED) > 340


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
