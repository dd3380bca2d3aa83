"""Settings that make Spark fast with little data: less compiling, fewer tasks.

Queries of tests run once over a few rows, so time goes into compiling them: Spark's code for each
query, and the JVM's of all that. Results are the same without. At full size (`sizes.py`) compiling
is worth its time.
"""

import os

# Without C2 the JVM reserves 48 MiB for code, which the queries of all tests of a run exceed.
_NO_COMPILING: dict[str, str] = {
    "spark.driver.extraJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
    ),
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

QUICK: dict[str, str] = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
} | ({} if "TIANZHOU_SPARK_ROWS" in os.environ else _NO_COMPILING)
