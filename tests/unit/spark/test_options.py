"""Options: case-insensitive names, typed values, contradictions rejected."""

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed: no pyspark")

from pyspark.sql.types import StructType

from tianzhou.errors import ConfigError
from tianzhou.spark import push_down
from tianzhou.spark.offline.source import StoreReader
from tianzhou.spark.options import (
    ReadFrom,
    SourceOptions,
    StoreOptions,
    ValueFormat,
    parse_duration_ms,
    parse_size_bytes,
    parse_time_ms,
    read_options,
)

COMMON = {"subscribe": "x", "nameServer": "a:1"}


def test_option_names_are_case_insensitive() -> None:
    given = {
        "nameserver": "a:9876;b:9876", "SUBSCRIBE": "x, y ,x", "failondataloss": "False",
        "readFrom": "Replica", "maxoffsetspertrigger": "17", "maxBytesPerTrigger": "16m",
        "maxTriggerDelay": "10s", "valueFormat": "TEXT", "startingtimestamp": "1700000000000",
        "endingOffsets": " Latest ",
    }  # fmt: skip
    options = read_options(SourceOptions, given)
    assert options.subscribe == ("x", "y")
    assert options.fail_on_data_loss is False
    assert options.read_from is ReadFrom.REPLICA
    assert options.max_offsets_per_trigger == 17
    assert options.max_bytes_per_trigger == 16 * 1024 * 1024
    assert options.trigger_delay_ms == 10_000
    assert options.ending_offsets == "latest"
    assert options.value_format is ValueFormat.TEXT
    assert options.starting_timestamp == 1_700_000_000_000
    assert options.client_settings().namesrv_addresses() == ("a:9876", "b:9876")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"subscrieb": "x"}, "unknown option subscrieb, did you mean subscribe?"),
        ({"subscribe": "x", "zzz": ""}, "unknown option zzz; known are accessKey"),
        ({"subscribe": " , "}, "option subscribe: ' , ' cannot be used"),
        ({"subscribe": "x", "assign": '{"t": {"b": [0]}}'}, "one of the options subscribe"),
        ({"subscribePattern": "("}, "not a regular expression"),
        ({"subscribe": "x", "keys": " || "}, "at least one key is expected"),
        ({"subscribe": "x", "minPartitions": "0"}, "a whole number of at least 1"),
        ({"subscribe": "x", "failOnDataLoss": "maybe"}, "true or false"),
        ({"subscribe": "x", "readFrom": "slave"}, "one of master, replica"),
        ({"subscribe": "x", "tags": "a", "sql": "b > 1"}, "tags and sql exclude each other"),
        ({"subscribe": "x", "startingOffsets": "committed"}, "the option group is needed"),
        ({"subscribe": "x", "startingOffsets": "Committed"}, "the option group is needed"),
        ({"subscribe": "x", "valueSchema": "a INT"}, "needs valueFormat=json"),
        (
            {"subscribe": "x", "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "more than maxOffsetsPerTrigger",
        ),
        (
            {"subscribe": "x", "startingOffsets": "earliest", "startingTimestamp": "1"},
            "startingOffsets and startingTimestamp exclude each other",
        ),
    ],
)
def test_invalid_options_are_rejected_with_a_reason(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_options(SourceOptions, given)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"commitOffsets": "true", "group": "g"}, "commitOffsets is for streams"),
        ({"maxOffsetsPerTrigger": "1"}, "maxOffsetsPerTrigger is for streams"),
        ({"minOffsetsPerTrigger": "1"}, "minOffsetsPerTrigger is for streams"),
        ({"maxBytesPerTrigger": "1k"}, "maxBytesPerTrigger is for streams"),
        ({"maxTriggerDelay": "0s"}, "maxTriggerDelay is for streams"),
        ({"startingOffsets": "LATEST"}, "a batch cannot start at latest"),
        ({"endingOffsets": "earliest"}, "a batch cannot end at earliest"),
    ],
)
def test_options_of_streams_are_rejected_in_batches(given: dict[str, str], text: str) -> None:
    options = read_options(SourceOptions, COMMON | given)
    with pytest.raises(ConfigError, match=text):
        options.for_batch()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"endingOffsets": "earliest"}, "a stream has no end"),
        ({"endingTimestamp": "1"}, "a stream has no end"),
        ({"endingOffsetsByTimestamp": "{}"}, "a stream has no end"),
        ({"pushDown": "true"}, "pushDown is for batches"),
        ({"pushDown": "false"}, "pushDown is for batches"),
        ({"maxTriggerDelay": "15m"}, "maxTriggerDelay needs minOffsetsPerTrigger"),
    ],
)
def test_options_of_batches_are_rejected_in_streams(given: dict[str, str], text: str) -> None:
    options = read_options(SourceOptions, COMMON | given)
    with pytest.raises(ConfigError, match=text):
        options.for_stream()


def test_options_have_defaults() -> None:
    options = read_options(SourceOptions, COMMON | {"minOffsetsPerTrigger": "5"}).for_stream()
    assert options.trigger_delay_ms == 15 * 60_000
    assert options.pushes_down == push_down.is_default()
    for text, pushes in (("no", False), ("yes", True)):
        given = read_options(SourceOptions, COMMON | {"pushDown": text}).for_batch()
        assert given.pushes_down is pushes


@pytest.mark.parametrize(
    ("text", "keys"),
    [("a", ("a",)), (" a  b a ", ("a", "b")), ("a || b,c", ("a", "b,c")), ("a||b", ("a||b",))],
)
def test_keys_are_separated_by_spaces_as_in_messages(text: str, keys: tuple[str, ...]) -> None:
    assert read_options(SourceOptions, COMMON | {"keys": text}).keys == keys


def test_a_store_directory_needs_a_path() -> None:
    with pytest.raises(ConfigError, match="the option path is needed"):
        read_options(StoreOptions, {"subscribe": "x"})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"startingOffsets": "latest"}, "a batch cannot start at latest"),
        ({"endingOffsets": "Earliest"}, "a batch cannot end at earliest"),
        ({"endingOffsets": "committed"}, "a store directory has no consumer groups"),
    ],
)
def test_options_that_a_store_directory_cannot_have_are_rejected(
    given: dict[str, str], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        StoreReader(
            read_options(StoreOptions, {"subscribe": "x", "path": "p"} | given), StructType()
        )


def test_secrets_are_not_shown() -> None:
    options = read_options(
        SourceOptions,
        {"subscribe": "x", "nameServer": "a:1", "accessKey": "me", "secretKey": "hush-hush"},
    )
    assert "hush" not in repr(options)
    credentials = options.client_settings().credentials
    assert credentials is not None
    assert credentials.secret_key == "hush-hush"  # noqa: S105 - the one that was given above


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"accessKey": "me"}, "accessKey and secretKey go together"),
        ({"securityToken": "t"}, "securityToken needs accessKey and secretKey"),
        ({"tlsTrusted": "ca.pem"}, "options like tlsTrusted need tls=true"),
        ({"tlsVerify": "false"}, "options like tlsTrusted need tls=true"),
    ],
)
def test_options_of_access_control_need_each_other(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        read_options(SourceOptions, COMMON | given).client_settings()


def test_durations_sizes_and_times_are_parsed() -> None:
    durations = ["500", "500ms", "2s", "1m", "2min", "1h", "1d"]
    assert [parse_duration_ms(text) for text in durations] == [
        500, 500, 2_000, 60_000, 120_000, 3_600_000, 86_400_000,
    ]  # fmt: skip
    assert [parse_size_bytes(text) for text in ("7", "1k", "2MB", "1GiB")] == [
        7, 1024, 2 * 1024**2, 1024**3,
    ]  # fmt: skip
    assert parse_time_ms("1970-01-01T00:00:01") == 1000
    assert parse_time_ms("1970-01-01T01:00:01+01:00") == 1000
    for parse in (parse_duration_ms, parse_size_bytes, parse_time_ms):
        with pytest.raises(ValueError, match="expected"):
            parse("soon")
