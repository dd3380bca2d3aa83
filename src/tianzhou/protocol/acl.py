"""Signed requests: who sends a request, and the proof.

    AccessKey      the account
    SecurityToken  optional, for temporary accounts
    Signature      base64 of HMAC-SHA1 with the account's secret key over the values of all other
                   ext fields, in the order of their names, and the body

A request may be signed again after a change; the old signature is not part of what is signed. Nor
are the names of the fields, the code of the request, its opaque and its time.
"""

import base64
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from tianzhou.protocol.command import Command

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"  # noqa: S105 - the name of a field
SIGNATURE = "Signature"
UNSIGNED_FIELD = "_UNIQUE_KEY_QUERY"
"""Some clients add it after they have signed."""
SIGNED_AT_ONCE_BYTES = 256 * 1024
"""The signature of a longer body takes so long that a server pauses after it."""
_NO_SECRET = "no account has this secret"  # noqa: S105 - compared with nothing


@dataclass(frozen=True, slots=True)
class Credentials:
    """An account; what is secret does not show in logs."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)


def signature(fields: Mapping[str, str], body: bytes, secret_key: str) -> str:
    """The signature of a request with these ext fields and this body."""
    values = "".join(fields[name] for name in sorted(fields) if name != SIGNATURE)
    code = hmac.new(secret_key.encode(), values.encode(), "sha1")
    code.update(body)
    return base64.b64encode(code.digest()).decode()


def is_signed_with(command: Command, secret_key: str | None) -> bool:
    """Whether the signature of a request is the one of this secret.

    None is the secret of an unknown account: never, and after the same work.
    """
    secret = _NO_SECRET if secret_key is None else secret_key
    given = (command.fields.get(SIGNATURE) or "").encode("utf-8", "surrogatepass")
    fields, body = dict(command.fields), bytes(command.body)
    matches = hmac.compare_digest(given, signature(fields, body, secret).encode())
    if not matches and fields.pop(UNSIGNED_FIELD, None) is not None:
        matches = hmac.compare_digest(given, signature(fields, body, secret).encode())
    return matches and secret_key is not None


def sign(command: Command, credentials: Credentials) -> None:
    """Put account and signature into the ext fields, in place of any that are there."""
    fields = dict(command.ext_fields or {})
    fields[ACCESS_KEY] = credentials.access_key
    if credentials.security_token is not None:
        fields[SECURITY_TOKEN] = credentials.security_token
    fields[SIGNATURE] = signature(fields, command.body, credentials.secret_key)
    command.ext_fields = fields
