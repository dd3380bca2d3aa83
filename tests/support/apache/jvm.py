"""Starts JVMs of the tests: options, home directory, and programs that run to their end."""

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.apache import jars

JVM_OPTIONS = (
    "-Xms128m",
    "-Xmx512m",
    "-XX:MaxDirectMemorySize=512m",
    # They run for seconds: the fast compiler and the serial collector save CPU.
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-Dfile.encoding=UTF-8",
    "-Djava.net.preferIPv4Stack=false",
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
    "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.98",
)

CLIENT_OPTIONS = (
    # Consumers rebalance every 20 s by default, which is too long for tests.
    "-Drocketmq.client.rebalance.waitInterval=1000",
    "-Drocketmq.client.rebalance.minInterval=500",
)

OPENED_PACKAGES = (
    "java.base/java.lang",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
)
"""Packages that RocketMQ accesses by reflection and Java 16 and later does not open."""

LOGBACK = """<configuration>
  <appender name="file" class="PACKAGE.core.FileAppender">
    <file>${user.home}/logs/rocketmq.log</file>
    <encoder><pattern>%d %p %t - %m%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="file"/></root>
</configuration>
"""
"""Programs of 4.x do not start without it in their home. Those of 5.x contain a renamed copy of
logback, find it on the class path, and then do not log to standard output."""


def java_command(version: str, home: Path, options: Sequence[str] = ()) -> list[str]:
    """The start of a command line: java, its options and the class path."""
    opened = (f"--add-opens={name}=ALL-UNNAMED" for name in OPENED_PACKAGES)
    return [
        jars.java(),
        *JVM_OPTIONS,
        *(opened if jars.java_release() >= 9 else ()),
        f"-Duser.home={home}",
        f"-Djava.io.tmpdir={home}",
        f"-Drocketmq.home.dir={home}",
        *options,
        "-cp",
        f"{home / 'conf'}{os.pathsep}{jars.classpath(version)}",
    ]


def make_home(directory: Path) -> Path:
    """The directory for ROCKETMQ_HOME, with the logging configuration."""
    conf = directory / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for program in ("broker", "namesrv", "tools"):
        (conf / f"logback_{program}.xml").write_text(LOGBACK.replace("PACKAGE", "ch.qos.logback"))
    shaded = LOGBACK.replace("PACKAGE", "org.apache.rocketmq.logging.ch.qos.logback")
    (conf / "rmq.logback.xml").write_text(shaded)
    return directory


def write_properties(path: Path, properties: Mapping[str, object]) -> None:
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))


def run_java(
    version: str,
    main_class: str,
    *arguments: str,
    jvm_options: Sequence[str] = (),
    timeout_s: float = 240,
) -> subprocess.CompletedProcess[str]:
    """Run a main class of the jars, or one of ours, to its end."""
    with tempfile.TemporaryDirectory(prefix="apache-java-") as directory:
        home = make_home(Path(directory))
        return subprocess.run(
            [*java_command(version, home, jvm_options), main_class, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=home,
            timeout=timeout_s,
            check=False,
        )
