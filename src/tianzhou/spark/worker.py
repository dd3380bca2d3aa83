"""The Python processes that Spark starts: what they should do once, before their first task.

Such a process serves many tasks, one after the other, and after each it has the interpreter look at
every object for garbage. Nearly all of these are code that was imported and stays: looking at it
takes longer than many a task does.
"""

import gc
import sys

_SPARKS = ("pyspark.daemon", "pyspark.worker", "pyspark.sql.worker.")

_settled = False


def settle_in() -> None:
    """Leave what is there now out of all collections of garbage to come, if this is Spark's."""
    global _settled
    if not _settled and is_worker():
        _settled = True
        gc.freeze()


def is_worker() -> bool:
    """Whether Spark has started this process for its tasks; a user's program is none of ours."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith(_SPARKS)
