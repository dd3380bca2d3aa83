"""Login by an OpenID provider: authorization code with PKCE (RFC 7636), one client per console.

    browser -> /oidc/start -> provider -> /oidc/callback?code=...  -> token endpoint -> session

The ID token comes straight from the token endpoint over verified TLS, so its issuer is known by
the connection (OpenID Connect Core 3.1.3.7, number 6); its claims are checked all the same. The
provider must be HTTPS, except on loopback.
"""

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import secrets
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any, cast
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from tianzhou.console.settings import OidcSettings
from tianzhou.errors import ConfigError, TianzhouError

_TIMEOUT_S = 10
_ANSWER_MAX = 256 * 1024
_AT_ONCE = 4
_DISCOVERED_S = 600
_CLOCKS_DIFFER_S = 120


class OidcError(TianzhouError, retriable=True):
    """The provider did not answer, or its answer does not fit."""


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """One login in progress; it is in a cookie of the browser that began it."""

    state: str
    nonce: str
    verifier: str
    back: str
    """Where to go on."""


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """What the provider says about a person."""

    subject: str
    """Unique for the issuer, for ever."""
    login: str
    name: str
    mail: str
    roles: tuple[str, ...]


class _Discovered(msgspec.Struct, frozen=True, kw_only=True):
    issuer: str
    authorization_endpoint: str
    token_endpoint: str


class _Tokens(msgspec.Struct, frozen=True, kw_only=True):
    id_token: str


def begin(back: str) -> Flow:
    """The secrets of a new login."""
    return Flow(
        state=secrets.token_urlsafe(32), nonce=secrets.token_urlsafe(32),
        verifier=secrets.token_urlsafe(48), back=back,
    )  # fmt: skip


def challenge_of(verifier: str) -> str:
    """The challenge (S256) of PKCE."""
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


class Provider:
    """The OpenID provider of a console."""

    def __init__(self, settings: OidcSettings) -> None:
        """Raises ConfigError for an issuer that is not HTTPS."""
        self.settings = settings
        _check_address(settings.issuer)
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._found: tuple[float, _Discovered] | None = None

    async def login_address(self, flow: Flow, callback: str) -> str:
        """Where the browser goes to log in. Raises OidcError."""
        found = await self._discovered()
        asked = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": callback,
            "scope": self.settings.scopes,
            "state": flow.state,
            "nonce": flow.nonce,
            "code_challenge": challenge_of(flow.verifier),
            "code_challenge_method": "S256",
        }
        joined = "&" if "?" in found.authorization_endpoint else "?"
        return f"{found.authorization_endpoint}{joined}{urlencode(asked)}"

    async def claims(
        self, flow: Flow, *, state: str, code: str, issuer: str, callback: str
    ) -> Claims:
        """Who logged in, by what the provider sent the browser back with. Raises OidcError."""
        if not hmac.compare_digest(state.encode(), flow.state.encode()):
            raise OidcError("the login was begun in another browser; begin it again")
        found = await self._discovered()
        if issuer and issuer != found.issuer:
            raise OidcError(f"the answer is from {issuer[:200]}, not from {found.issuer}")
        body = {
            "grant_type": "authorization_code", "code": code, "redirect_uri": callback,
            "client_id": self.settings.client_id, "code_verifier": flow.verifier,
        }  # fmt: skip
        headers: dict[str, str] = {}
        if self.settings.client_secret:
            account = (
                f"{quote(self.settings.client_id, safe='')}:"
                f"{quote(self.settings.client_secret, safe='')}"
            )
            headers["Authorization"] = f"Basic {base64.b64encode(account.encode()).decode()}"
        answer = await self._ask(found.token_endpoint, urlencode(body).encode(), headers)
        try:
            id_token = msgspec.json.decode(answer, type=_Tokens).id_token
        except msgspec.DecodeError as e:
            raise OidcError(f"{found.token_endpoint} sent no ID token: {e}") from e
        return checked(
            payload_of(id_token), self.settings, found.issuer, flow.nonce, time.time()
        )  # fmt: skip

    async def _discovered(self) -> _Discovered:
        now_s = time.monotonic()
        if self._found is not None and now_s < self._found[0] + _DISCOVERED_S:
            return self._found[1]
        where = f"{self.settings.issuer}/.well-known/openid-configuration"
        try:
            found = msgspec.json.decode(await self._ask(where, None, {}), type=_Discovered)
        except msgspec.DecodeError as e:
            raise OidcError(f"{where} is no OpenID configuration: {e}") from e
        if found.issuer.rstrip("/") != self.settings.issuer:
            raise OidcError(f"{where} is about another issuer, {found.issuer[:200]}")
        for each in (found.authorization_endpoint, found.token_endpoint):
            try:
                _check_address(each)
            except ConfigError as e:
                raise OidcError(str(e)) from e
        self._found = (now_s, found)
        return found

    async def _ask(self, where: str, body: bytes | None, headers: dict[str, str]) -> bytes:
        async with self._at_once:
            return await asyncio.to_thread(_fetch, where, body, headers)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - urllib's own
        return None


def _fetch(where: str, body: bytes | None, headers: dict[str, str]) -> bytes:
    request = urllib.request.Request(  # noqa: S310 - the scheme is checked
        where, data=body, headers={"Accept": "application/json", **headers}
    )
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as response:
            answer: bytes = response.read(_ANSWER_MAX + 1)
    except urllib.error.HTTPError as e:
        raise OidcError(f"{where} answered {e.code} {e.reason}") from e
    except (OSError, HTTPException, ValueError) as e:
        raise OidcError(f"{where} did not answer: {e}") from e
    if len(answer) > _ANSWER_MAX:
        raise OidcError(f"{where} answered more than {_ANSWER_MAX:,} bytes")
    return answer


def _check_address(address: str) -> None:
    """HTTPS, or loopback. Raises ConfigError."""
    parts = urlsplit(address)
    host = parts.hostname or ""
    try:
        is_local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = False
    if not (parts.scheme == "https" or (parts.scheme == "http" and is_local)) or not host:
        raise ConfigError(f"OpenID provider {address[:200]}: the address must begin with https://")


# -- the ID token ----------------------------------------------------------------------------------


def payload_of(token: str) -> dict[str, Any]:
    """The claims of an ID token, unchecked. Raises OidcError."""
    try:
        _, payload, _ = token.split(".")
        decoded: object = msgspec.json.decode(
            base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
        )
    except (ValueError, msgspec.DecodeError, RecursionError) as e:
        raise OidcError("the ID token cannot be read") from e
    if not isinstance(decoded, dict):
        raise OidcError("the ID token has no claims")
    return cast("dict[str, Any]", decoded)


def checked(
    payload: dict[str, Any], settings: OidcSettings, issuer: str, nonce: str, now_s: float
) -> Claims:
    """The claims, if the token is for this console and this login. Raises OidcError."""
    audience = payload.get("aud")
    audiences = cast("list[object]", audience) if isinstance(audience, list) else [audience]
    if payload.get("iss") != issuer:
        raise OidcError("the ID token is of another issuer")
    if settings.client_id not in audiences:
        raise OidcError("the ID token is for another client")
    if len(audiences) > 1 and payload.get("azp") != settings.client_id:
        raise OidcError("the ID token was made for another client")
    if not hmac.compare_digest(str(payload.get("nonce", "")).encode(), nonce.encode()):
        raise OidcError("the ID token is of another login")
    until_s = payload.get("exp")
    if not isinstance(until_s, int | float) or now_s > until_s + _CLOCKS_DIFFER_S:
        raise OidcError("the ID token is over; compare the clocks of provider and console")
    subject = payload.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= 255:
        raise OidcError("the ID token names no person")
    roles = payload.get(settings.role_claim) if settings.role_claim else None
    listed = cast("list[object]", roles) if isinstance(roles, list) else [roles]
    return Claims(
        subject=f"{issuer} {subject}",
        login=_text(payload, "preferred_username") or _text(payload, "email") or subject,
        name=_text(payload, "name"),
        mail=_text(payload, "email"),
        roles=tuple(each for each in listed if isinstance(each, str)),
    )


def is_admin(claims: Claims, settings: OidcSettings) -> bool | None:
    """Whether the person is an administrator; None: may not use the console."""
    if set(claims.roles) & set(settings.administrators):
        return True
    if "*" in settings.readers or set(claims.roles) & set(settings.readers):
        return False
    return None


def _text(payload: dict[str, Any], name: str) -> str:
    value = payload.get(name)
    return value if isinstance(value, str) and value.isprintable() and len(value) < 200 else ""
