"""`tianzhou` and `python -m tianzhou`."""

import sys


def main() -> None:
    """Run the command line; exits the process."""
    # A server lives long and starts often: it does not load what only other commands need.
    if sys.argv[1:2] == ["namesrv"]:
        from tianzhou.cli import namesrv

        sys.exit(namesrv.main(sys.argv[2:]))
    if sys.argv[1:2] == ["broker"]:
        from tianzhou.cli import broker

        sys.exit(broker.main(sys.argv[2:]))
    if sys.argv[1:2] == ["up"]:
        from tianzhou.cli import up

        sys.exit(up.main(sys.argv[2:]))
    from tianzhou.cli.app import app

    app(prog_name="tianzhou")


if __name__ == "__main__":
    main()
