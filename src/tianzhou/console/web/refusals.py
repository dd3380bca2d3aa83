"""Answers instead of a page: an error with its status, a redirect, nothing new."""

from http import HTTPStatus

from tianzhou.console.text import Text


class Refusal(Exception):
    """The request is answered with a status and a text."""

    status = HTTPStatus.BAD_REQUEST

    def __init__(
        self, text: Text, *, status: HTTPStatus | None = None, retry_s: int | None = None
    ) -> None:
        super().__init__(str(text))
        self.text = text
        self.retry_s = retry_s
        """After how many seconds the same request may succeed."""
        if status is not None:
            self.status = status


class NotFound(Refusal):
    """There is no such thing, or the person may not know that there is."""

    status = HTTPStatus.NOT_FOUND

    def __init__(self, text: Text | None = None) -> None:
        super().__init__(text or Text("There is nothing at this address."))


class Forbidden(Refusal):
    """The person may not do this."""

    status = HTTPStatus.FORBIDDEN


class Invalid(Refusal):
    """A field of a form is wrong; `field` names it."""

    status = HTTPStatus.UNPROCESSABLE_ENTITY

    def __init__(self, text: Text, field: str = "") -> None:
        super().__init__(text)
        self.field = field


class Conflict(Refusal):
    """The thing is not in the state that the change was made for."""

    status = HTTPStatus.CONFLICT


class TooMany(Refusal):
    """A limit of requests; come again in `retry_s`."""

    status = HTTPStatus.TOO_MANY_REQUESTS


class Unavailable(Refusal):
    """The cluster or the database does not answer."""

    status = HTTPStatus.SERVICE_UNAVAILABLE


class LoginNeeded(Exception):
    """A stranger asks for a page of people."""
