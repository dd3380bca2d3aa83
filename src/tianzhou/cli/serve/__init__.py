"""Commands that run a server in the foreground, and those that stop one."""

from collections.abc import Sequence


def serve(program: str, arguments: Sequence[str]) -> int:
    """Run `tianzhou namesrv`, `broker`, `console` or `up`; imports only what that server needs."""
    if program == "namesrv":
        from tianzhou.cli.serve import namesrv as command
    elif program == "broker":
        from tianzhou.cli.serve import broker as command  # type: ignore[no-redef]
    elif program == "console" and arguments[:1] in (["user"], ["token"]):
        from tianzhou.cli.serve import console_accounts as command  # type: ignore[no-redef]
    elif program == "console":
        from tianzhou.cli.serve import console as command  # type: ignore[no-redef]
    else:
        from tianzhou.cli.serve import up as command  # type: ignore[no-redef]
    return command.main(arguments)
