"""A small OpenID provider as a program of its own: python -m tests.support.console.oidc_provider

It prints its issuer. An account is chosen by `login_hint`; some of them get a wrong ID token.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
import sys
import time
from typing import Any
from urllib.parse import parse_qs, urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT, SECRET = "tianzhou", "s3cret/with:signs"
CALLBACK_END = "/oidc/callback"
ACCOUNTS: dict[str, dict[str, Any]] = {
    "ann": {"groups": ["mq-admins"], "name": "Ann Admin", "email": "ann@example.com"},
    "bob": {"groups": ["mq-readers", "others"]},
    "eve": {"groups": ["others"]},
    "rita": {"groups": ["mq-admins"]},
    "wrong-nonce": {"groups": ["mq-admins"], "nonce": "other"},
    "wrong-audience": {"groups": ["mq-admins"], "aud": "another-client"},
    "wrong-party": {"groups": ["mq-admins"], "aud": [CLIENT, "x"], "azp": "x"},
    "wrong-issuer": {"groups": ["mq-admins"], "iss": "http://127.0.0.1:1"},
    "expired": {"groups": ["mq-admins"], "exp": 1_000_000_000},
    "no-subject": {"groups": ["mq-admins"], "sub": None},
    "markup": {"groups": ["mq-readers"], "preferred_username": "<b>x</b>"},
}
FAULTS = [name for name in ACCOUNTS if name.startswith(("wrong-", "expired", "no-"))]

codes: dict[str, dict[str, str]] = {}
issuer = ""


async def configuration(_: Request) -> Response:
    return JSONResponse(
        {"issuer": issuer, "authorization_endpoint": f"{issuer}/authorize",
         "token_endpoint": f"{issuer}/token"}
    )  # fmt: skip


async def authorize(request: Request) -> Response:
    asked = dict(request.query_params)
    wanted = {"response_type": "code", "client_id": CLIENT, "code_challenge_method": "S256"}
    if wanted.items() - asked.items() or not asked["redirect_uri"].endswith(CALLBACK_END):
        return Response("bad request", 400)
    account = asked.get("login_hint", "")
    if account not in ACCOUNTS:
        more = {"error": "access_denied", "state": asked["state"]}
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode(more)}", 302)
    code = secrets.token_urlsafe(16)
    codes[code] = {**asked, "account": account}
    more = {"code": code, "state": asked["state"], "iss": issuer}
    return RedirectResponse(f"{asked['redirect_uri']}?{urlencode(more)}", 302)


async def token(request: Request) -> Response:
    given = {name: each[0] for name, each in parse_qs((await request.body()).decode()).items()}
    account = base64.b64encode(f"{CLIENT}:s3cret%2Fwith%3Asigns".encode()).decode()
    if request.headers.get("authorization") != f"Basic {account}":
        return JSONResponse({"error": "invalid_client"}, 401)
    asked = codes.pop(given.get("code", ""), None)
    if asked is None or given.get("redirect_uri") != asked["redirect_uri"]:
        return JSONResponse({"error": "invalid_grant"}, 400)
    digest = hashlib.sha256(given.get("code_verifier", "").encode()).digest()
    if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != asked["code_challenge"]:
        return JSONResponse({"error": "invalid_grant"}, 400)
    claims = {
        "iss": issuer, "aud": CLIENT, "sub": f"id-of-{asked['account']}",
        "exp": time.time() + 300, "iat": time.time(), "nonce": asked["nonce"],
        "preferred_username": asked["account"], **ACCOUNTS[asked["account"]],
    }  # fmt: skip
    return JSONResponse({"id_token": _signed(claims), "token_type": "Bearer", "access_token": "x"})


def _signed(claims: dict[str, Any]) -> str:
    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    head = part(b'{"alg":"HS256","typ":"JWT"}')
    text = f"{head}.{part(json.dumps(claims).encode())}"
    return f"{text}.{part(hmac.digest(SECRET.encode(), text.encode(), 'sha256'))}"


async def main() -> None:
    global issuer
    routes = [
        Route("/.well-known/openid-configuration", configuration),
        Route("/authorize", authorize),
        Route("/token", token, methods=["POST"]),
    ]
    config = uvicorn.Config(Starlette(routes=routes), port=0, log_level="error")
    sock = config.bind_socket()
    issuer = f"http://127.0.0.1:{sock.getsockname()[1]}"
    sys.stdout.write(f"{issuer}\n")
    sys.stdout.flush()
    await uvicorn.Server(config).serve([sock])


if __name__ == "__main__":
    asyncio.run(main())
