"""`tianzhou` and `python -m tianzhou`."""

import sys


def main() -> None:
    """Run the command line; exits the process."""
    # Servers start without loading the modules of the other commands.
    program, rest = sys.argv[1:2], sys.argv[2:]
    if program in (["namesrv"], ["broker"]):
        from tianzhou.cli.shared.arguments import is_admin_command

        if not is_admin_command(program[0], rest):
            sys.exit(_serve(program[0], rest))
    if program == ["up"]:
        from tianzhou.cli.serve import up

        sys.exit(up.main(rest))
    from tianzhou.cli import app

    sys.exit(app.main())


def _serve(program: str, arguments: list[str]) -> int:
    if program == "namesrv":
        from tianzhou.cli.serve import namesrv

        return namesrv.main(arguments)
    from tianzhou.cli.serve import broker

    return broker.main(arguments)


if __name__ == "__main__":
    main()
