"""Lines for the terminal, and exit codes: 0 success, 1 failure, 2 usage or configuration error."""

import sys

OK, FAILED, USAGE_ERROR = 0, 1, 2


def print_line(text: str) -> None:
    """Print a line and flush it, also into a pipe."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def print_error(command: str, error: object) -> None:
    """Print an error in one line."""
    text = " ".join(str(error).split())
    sys.stderr.write(f"{command}: {text}\n")
