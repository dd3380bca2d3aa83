"""Temporary files of started programs: below the folder of the test.

A killed driver does not clean up, and one that ends may be too late for it. In a folder of the test
the files are removed with the test's other files.
"""

from pathlib import Path


def passing_files(folder: Path, java_options: str = "") -> dict[str, str]:
    """Environment variables for a program that uses Spark, or for a JVM of Spark."""
    scratch = folder / "passing"
    scratch.mkdir(exist_ok=True)
    return {
        "TMPDIR": str(scratch),
        "SPARK_LOCAL_DIRS": str(scratch),
        # Without the last option, every JVM has a file in the shared /tmp.
        "JDK_JAVA_OPTIONS": f'{java_options} "-Djava.io.tmpdir={scratch}" -XX:-UsePerfData'.strip(),
    }
