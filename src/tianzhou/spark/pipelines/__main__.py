"""`python -m tianzhou.spark.pipelines NAME OPTION=VALUE ...`: runs a pipeline under spark-submit.

The same as `tianzhou pipeline run`, without the dependencies of the command line, which machines of
a cluster may lack. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration.
"""

import sys
from collections.abc import Sequence

from tianzhou.errors import ConfigError, TianzhouError
from tianzhou.spark.pipelines import catalog

OK, FAILED, WRONG_USE = 0, 1, 2


def main(arguments: Sequence[str]) -> int:
    """Run the pipeline; returns the exit code."""
    try:
        name, given = parse(arguments)
        from tianzhou.spark.pipelines import runner

        runner.check(name, given)
        outcome = runner.run(name, given, on_progress=lambda line: _say(f"{name}: {line}"))
    except ConfigError as e:
        _say(str(e))
        return WRONG_USE
    except TianzhouError as e:
        _say(str(e))
        return FAILED
    _say(f"{name}: {outcome.row_count} rows" + (f" ({outcome.note})" if outcome.note else ""))
    return OK


def parse(arguments: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Name and options. Raises ConfigError."""
    if not arguments:
        known = ", ".join(catalog.PIPELINES)
        raise ConfigError(f"NAME OPTION=VALUE ... is expected; known are {known}")
    catalog.entry(arguments[0])
    return arguments[0], catalog.parse_pairs(arguments[1:])


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
