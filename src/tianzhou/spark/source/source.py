"""`format("rocketmq")`: reads and writes topics of a cluster, in batches and streams."""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from tianzhou.errors import ConfigError
from tianzhou.spark import push_down, schema
from tianzhou.spark.options import SourceOptions, read_options
from tianzhou.spark.sink.options import SinkOptions, read_sink_options
from tianzhou.spark.source.batch import BatchReader, PushingReader
from tianzhou.spark.source.stream import FailedStream, StreamReader
from tianzhou.spark.worker_tuning import init_worker


class RocketmqSource(DataSource):
    """The data source; its options are `SourceOptions` and `SinkOptions`."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> str:
        return schema.full_schema(read_options(SourceOptions, self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        init_worker()
        options = read_options(SourceOptions, self.options).for_batch()
        if not options.pushes_down:
            return BatchReader(options, schema)
        push_down.warn_if_unsafe()
        return PushingReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            return StreamReader(read_options(SourceOptions, self.options).for_stream(), schema)
        except ConfigError as error:
            return FailedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from tianzhou.spark.sink.sink import BatchWriter

        return BatchWriter(self._sink_options(schema, overwrite, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from tianzhou.spark.sink.sink import StreamWriter

        # Output mode "complete" arrives as overwrite; append and update both add messages.
        return StreamWriter(self._sink_options(schema, overwrite, streaming=True))

    def _sink_options(self, schema: StructType, overwrite: bool, streaming: bool) -> SinkOptions:
        return read_sink_options(self.options, schema, overwrite=overwrite, streaming=streaming)
