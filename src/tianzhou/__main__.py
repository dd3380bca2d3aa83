"""`tianzhou` and `python -m tianzhou`."""

import sys


def main() -> None:
    """Run the command line; exits the process."""
    # Servers start without loading the modules of the other commands.
    program, rest = sys.argv[1:2], sys.argv[2:]
    if program in (["namesrv"], ["broker"], ["up"], ["console"]):
        from tianzhou.cli.serve import serve
        from tianzhou.cli.shared.arguments import is_admin_command

        if not is_admin_command(program[0], rest):
            sys.exit(serve(program[0], rest))
    from tianzhou.cli import app

    sys.exit(app.main())


if __name__ == "__main__":
    main()
