"""`format("rocketmq")`: topics of a cluster as a table and as a stream."""

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
from tianzhou.spark.python_worker import init_worker
from tianzhou.spark.source.batch import BatchReader, PushingReader
from tianzhou.spark.source.stream import RefusedStream, StreamReader


class RocketmqSource(DataSource):
    """The data source; see the module. Options are those of `SourceOptions`."""

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
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from tianzhou.spark.sink.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from tianzhou.spark.sink.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)
