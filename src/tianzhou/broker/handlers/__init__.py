"""Handlers of requests, one module per subject.

A handler is a function of its dependencies, the connection and the request:

    def pull_message(deps: Deps, connection: Connection, request: Command) -> Answer: ...

It returns the response, an awaitable of the response, or PARKED if it has parked the request and
responds later. It raises RequestError to refuse the request.
"""

from collections.abc import Awaitable

from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import Deferral

Answer = Command | Awaitable[Command | Deferral] | Deferral
"""What a handler returns."""
