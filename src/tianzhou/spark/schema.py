"""The columns of a message, and the check of a projection.

Both sources have the same columns. A schema given by the user is a projection: some of these
columns in any order, with their types; other columns are not decoded. Times are in microseconds
UTC, as in Spark. A value format adds the column `value`, decoded from the body.
"""

from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tianzhou.errors import ConfigError
from tianzhou.protocol import properties
from tianzhou.spark.options import ReadingOptions, ValueFormat, closest

VALUE = "value"
"""The column of the decoded body."""

MALFORMED_NULL = ("body", "bornTimestamp", "storeTimestamp")
"""Columns that are null only for malformed messages."""

_STRING, _INT, _LONG, _TIME = StringType(), IntegerType(), LongType(), TimestampType()


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, type and origin."""

    name: str
    spark_type: DataType
    meaning: str
    properties: tuple[str, ...] = ()
    """Properties that hold the value, first match wins; empty: a field of the record."""

    @property
    def may_be_null(self) -> bool:
        return bool(self.properties) or self.name in (*MALFORMED_NULL, "transactionState")


COLUMNS = (
    Column("topic", _STRING, "name of the topic"),
    Column("brokerName", _STRING, "name of the broker (group of master and replicas)"),
    Column("queueId", _INT, "number of the queue on that broker"),
    Column("queueOffset", _LONG, "position in the queue"),
    Column("physicalOffset", _LONG, "position in the broker's log"),
    Column("msgId", _STRING, "the producer's id, the broker's where there is none"),
    Column("offsetMsgId", _STRING, "the broker's id: address and physical offset"),
    Column("tags", _STRING, "tag, null without one", (properties.TAGS,)),
    Column("keys", ArrayType(_STRING), "keys, empty without any"),
    Column("body", BinaryType(), "the body as it was sent, unpacked; null if that fails"),
    Column("properties", MapType(_STRING, _STRING), "all properties, those of the system too"),
    Column("bornTimestamp", _TIME, "when the producer sent it"),
    Column("storeTimestamp", _TIME, "when the broker stored it"),
    Column("bornHost", _STRING, "address of the producer"),
    Column("storeHost", _STRING, "address of the broker"),
    Column("reconsumeTimes", _INT, "how often it was delivered again"),
    Column("sysFlag", _INT, "system flag: compression, transaction state, address forms"),
    Column("flag", _INT, "flag of the program"),
    Column("storeSize", _INT, "bytes of the record in the log"),
    Column("bodyCrc", _INT, "CRC-32 of the stored body, without its top bit"),
    Column("delayLevel", _INT, "delay level, while the broker keeps it", (properties.DELAY_LEVEL,)),
    Column(
        "deliverTimestamp", _TIME, "when a timed message is or was due",
        (properties.TIMER_OUT_MS, properties.TIMER_DELIVER_MS),
    ),
    Column("transactionState", _STRING, "prepared, commit or rollback; null outside transactions"),
    Column("preparedOffset", _LONG, "physical offset of the prepared message, 0 without one"),
    Column("transactionId", _STRING, "id of the transaction", (properties.TRANSACTION_ID,)),
    Column("producerGroup", _STRING, "producer group, if stored", (properties.PRODUCER_GROUP,)),
    Column("orderKey", _STRING, "sharding key", (properties.SHARDING_KEY,)),
    Column("retryTopic", _STRING, "of a redelivery: its first topic", (properties.RETRY_TOPIC,)),
    Column(
        "originMsgId", _STRING, "of a redelivery: its first id", (properties.ORIGIN_MESSAGE_ID,)
    ),
    Column(
        "dlqOriginTopic", _STRING, "of a dead letter: its topic", (properties.DLQ_ORIGIN_TOPIC,)
    ),
    Column(
        "dlqOriginMsgId", _STRING, "of a dead letter: its id", (properties.DLQ_ORIGIN_MESSAGE_ID,)
    ),
)  # fmt: skip
"""All columns, in their order."""

BY_NAME = {column.name: column for column in COLUMNS}
DDL = ", ".join(f"{column.name} {column.spark_type.simpleString()}" for column in COLUMNS)
"""All columns as a schema in Spark's DDL."""


def full_schema(options: ReadingOptions) -> str:
    """The default schema of a source, in Spark's DDL. Raises ConfigError.

    It is text because the type of `value` is DDL from the user, which only Spark parses.
    """
    if options.value_format is None:
        return DDL
    if options.value_format is ValueFormat.TEXT:
        return f"{DDL}, {VALUE} string"
    if not options.value_schema:
        raise ConfigError("valueFormat=json needs a valueSchema such as 'id BIGINT, city STRING'")
    return f"{DDL}, {VALUE} struct<{options.value_schema}>"


def check_projection(schema: StructType, options: ReadingOptions) -> None:
    """Raises ConfigError for an unknown column or a wrong type."""
    if not schema.fields:
        raise ConfigError("the schema must name at least one column")
    for field in schema.fields:
        kind = field.dataType
        if field.name == VALUE and options.value_format is not None:
            fits = StructType if options.value_format is ValueFormat.JSON else StringType
            if not isinstance(kind, fits):
                raise ConfigError(
                    f"column value is a {fits.typeName()} with valueFormat={options.value_format}, "
                    f"not a {kind.simpleString()}"
                )
            _check_nullable(field)
            continue
        column = BY_NAME.get(field.name)
        if column is None:
            if field.name == VALUE:
                raise ConfigError("there is no column value; the option valueFormat adds it")
            raise ConfigError(f"there is no column {field.name}{closest(field.name, BY_NAME)}")
        # Nullability may differ: what we give is never null inside of arrays and maps.
        if kind.simpleString() != column.spark_type.simpleString():
            raise ConfigError(
                f"column {field.name} has the type {column.spark_type.simpleString()}, not "
                f"{kind.simpleString()}"
            )
        if column.may_be_null and not (options.fail_on_malformed and field.name in MALFORMED_NULL):
            _check_nullable(field)


def _check_nullable(field: StructField) -> None:
    """Spark trusts a schema: a null in a NOT NULL column would become a wrong value."""
    if not field.nullable:
        raise ConfigError(f"column {field.name} may be null: leave NOT NULL out of the schema")
