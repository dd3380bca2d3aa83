"""Temporary files of started programs: below the folder of the test.

A driver that is killed cleans nothing up, and one that ends by itself may be too late for it. In a
folder of the test all that goes with the test's other files.
"""

from pathlib import Path


def passing_files(folder: Path, java_options: str = "") -> dict[str, str]:
    """Variables of the environment for a program with Spark in it, or for a JVM of Spark."""
    place = folder / "passing"
    place.mkdir(exist_ok=True)
    return {
        "TMPDIR": str(place),
        "SPARK_LOCAL_DIRS": str(place),
        # Without the last, every JVM has a file in the folder of all users, wherever others are.
        "JDK_JAVA_OPTIONS": f'{java_options} "-Djava.io.tmpdir={place}" -XX:-UsePerfData'.strip(),
    }
