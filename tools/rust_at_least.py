"""Exit 0 if the installed Rust compiler is at least the version given, else 1."""

import re
import subprocess
import sys


def parts(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def main() -> int:
    try:
        result = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True)  # noqa: S607 - rustc is wherever the user put it
    except (OSError, subprocess.CalledProcessError):
        return 1
    return 0 if parts(result.stdout) >= parts(sys.argv[1]) else 1


if __name__ == "__main__":
    sys.exit(main())
