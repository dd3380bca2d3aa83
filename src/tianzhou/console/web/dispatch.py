"""The ASGI application: request -> gate -> route -> view or change -> response.

    GET  /x            the page                    GET /x.json     the struct of the same view
    GET  /x.csv        the rows of its table       POST /x         a change, `_do` names it
    POST /x?dry=1      the plan of the change

A request of htmx for `main#page` gets the inner part only. Inner parts and JSON have an ETag, so an
open page that asks again gets 304 while nothing has changed.
"""

import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from http import HTTPStatus
from typing import cast

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from tianzhou.console.settings import ConsoleSettings
from tianzhou.console.text import Text
from tianzhou.console.web import body, figures, gate, render, responses, static
from tianzhou.console.web.ask import Ask, Caller, Console
from tianzhou.console.web.refusals import (
    Conflict,
    Invalid,
    LoginNeeded,
    NotFound,
    Refusal,
    Unavailable,
)
from tianzhou.console.web.route import Change, Done, Plan, Prepared, Route, Who
from tianzhou.console.web.words import language_of
from tianzhou.errors import DatabaseUnavailable, TianzhouError

log = logging.getLogger(__name__)

POLICY = (
    "default-src 'self'; frame-ancestors 'none'; form-action 'self'; base-uri 'none'; "
    "object-src 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
_FORMS = {".json": "json", ".csv": "csv"}
_RENDERED_MAX = 256


class Application:
    """The console as an ASGI application."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._rendered: OrderedDict[str, str] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
            return
        began_s = time.monotonic()
        request = Request(scope, receive)
        ask = self._ask(request)
        response = await self._respond(ask, request)
        for name, value in _HEADERS.items():
            response.headers[name] = value
        if self.console.settings.is_https:
            response.headers["Strict-Transport-Security"] = "max-age=31536000"
        response.headers.setdefault("Cache-Control", "no-store")
        self.console.metrics.observe(
            ask.route.path, ask.method, response.status_code, time.monotonic() - began_s
        )
        await response(scope, receive, send)

    # -- from request to response --------------------------------------------------------------

    async def _respond(self, ask: Ask, request: Request) -> Response:
        try:
            gate.check_host(self.console.settings, request.headers.get("host", ""))
            route, ask.path = self._route(ask)
            if not (route is not None and route.path == "/static/{name:path}"):
                ask.caller = await gate.caller_of(self.console, request)
                self._set_preferences(ask, request)
            ask.route = gate.check_page(ask.caller, route)
            response = await self._answer(ask, request)
        except LoginNeeded:
            response = self._login(ask, request)
        except Refusal as e:
            response = self._refused(ask, e)
        except DatabaseUnavailable as e:
            log.warning("%s", e)
            ask.caller = Caller()
            response = self._refused(ask, Unavailable(Text("{why}", why=str(e)), retry_s=10))
        except TianzhouError as e:
            text = Text("The cluster could not be asked: {why}", why=str(e))
            response = self._refused(ask, Refusal(text, status=HTTPStatus.BAD_GATEWAY))
        except Exception:  # a bug in one page must not end the console
            number = secrets.token_hex(4)
            log.exception("request %s %s failed (%s)", ask.method, ask.address, number)
            text = Text("The console failed here. Its log has the reason under {number}.",
                        number=number)  # fmt: skip
            response = self._refused(
                ask, Refusal(text, status=HTTPStatus.INTERNAL_SERVER_ERROR)
            )  # fmt: skip
        for cookie in ask.new_cookies:
            response.headers.append("Set-Cookie", cookie)
        return response

    def _ask(self, request: Request) -> Ask:
        address, form = str(request.scope["path"]), "html"
        root = self.console.settings.root_path
        if root and (address == root or address.startswith(f"{root}/")):
            address = address[len(root) :] or "/"
        for ending, kind in _FORMS.items():
            if address.endswith(ending) and not address.startswith("/static/"):
                address, form = address.removesuffix(ending), kind
        if address == "/index":
            address = "/"
        if "json" in request.headers.get("content-type", ""):
            form = "json"
        return Ask(
            console=self.console,
            route=_NO_ROUTE,
            caller=Caller(),
            method=request.method,
            query=dict(request.query_params),
            origin=_origin(request, self.console.settings),
            address=address,
            form=form,
            language=language_of(
                "", request.cookies.get("tianzhou_language", ""),
                request.headers.get("accept-language", ""),
            ),
            theme=_theme(request.cookies.get("tianzhou_theme", "")),
            ip=request.client.host if request.client else "",
            agent=request.headers.get("user-agent", "")[:255],
            headers=request.headers,
            cookies=request.cookies,
        )  # fmt: skip

    def _route(self, ask: Ask) -> tuple[Route | None, dict[str, str]]:
        for route in self.console.routes:
            names = route.matched(ask.address)
            if names is not None:
                return route, names
        return None, {}

    def _set_preferences(self, ask: Ask, request: Request) -> None:
        person = ask.caller.person
        if person is None:
            return
        ask.zone = person.zone if figures.is_zone(person.zone) else _machine_zone()
        if person.language:
            accepted = request.headers.get("accept-language", "")
            ask.language = language_of(person.language, "", accepted)

    async def _answer(self, ask: Ask, request: Request) -> Response:
        route = ask.route
        if ask.method in ("GET", "HEAD") and ask.method in route.methods:
            if route.answer is not None:
                return await route.answer(ask)
            return await self._page(ask)
        allowed = [*route.methods, *(["POST"] if route.changes else [])]
        if ask.method not in allowed or ask.method == "HEAD":
            refused = self._refused(
                ask,
                Refusal(Text("This address does not accept {method}.", method=ask.method),
                        status=HTTPStatus.METHOD_NOT_ALLOWED),
            )  # fmt: skip
            refused.headers["Allow"] = ", ".join(allowed)
            return refused
        if ask.caller.token is None or "sec-fetch-site" in request.headers:
            gate.check_same_origin(request)
        ask.body = await body.read(request)
        if route.answer is not None:
            return await route.answer(ask)
        return await self._change(ask)

    # -- pages -----------------------------------------------------------------------------------

    async def _page(self, ask: Ask) -> Response:
        route = ask.route
        if ask.form == "csv":
            return await self._csv(ask)
        is_part = responses.is_fragment(ask)
        version = route.version(ask) if route.version is not None else None
        mark = self._mark(ask, version) if version is not None else ""
        if mark and (is_part or ask.form == "json") and responses.is_known(ask, mark):
            return responses.not_modified(mark)
        if ask.form == "json":
            encoded = responses.encode(await self._view(ask))
            mark = mark or responses.digest(encoded)
            if responses.is_known(ask, mark):
                return responses.not_modified(mark)
            return Response(
                encoded, media_type="application/json", headers={"ETag": responses.etag(mark)}
            )  # fmt: skip
        inner = self._rendered.get(mark) if mark else None
        if inner is None:
            inner = render.content(ask, route.template, await self._view(ask))
            if mark:
                self._rendered[mark] = inner
                if len(self._rendered) > _RENDERED_MAX:
                    self._rendered.popitem(last=False)
        mark = mark or responses.digest(inner.encode())
        if is_part:
            if responses.is_known(ask, mark):
                return responses.not_modified(mark)
            text = render.part_of_page(ask, inner, responses.etag(mark))
            return responses.html(
                text, headers={"ETag": responses.etag(mark), "Vary": "HX-Request"}
            )
        return self._whole(ask, inner, route.title, mark=responses.etag(mark))

    async def _view(self, ask: Ask) -> msgspec.Struct:
        view = ask.route.view
        if view is None:
            raise NotFound
        return await view(ask)

    def _mark(self, ask: Ask, version: object) -> str:
        """Equal for everyone who gets the same inner part."""
        key = (
            ask.route.path, sorted(ask.path.items()), sorted(ask.query.items()), ask.form,
            ask.language, ask.zone, ask.caller.who, ask.scope.key, static.build(),
            self.console.started_ms, str(version),
        )  # fmt: skip
        return responses.digest(repr(key).encode())

    async def _csv(self, ask: Ask) -> Response:
        if not ask.route.rows:
            raise NotFound
        listing = getattr(await self._view(ask), ask.route.rows)
        name = ask.address.strip("/").replace("/", "-") or "clusters"
        return responses.csv_response(listing.rows, f"{name}.csv")

    def _whole(
        self, ask: Ask, inner: str, title: Text, status: int = 200, **more: object
    ) -> Response:
        notice = responses.notice_of(ask)
        if notice is not None:
            ask.new_cookies.append(responses.set_cookie(ask, responses.NOTICE, "", max_age_s=0))
        text = render.whole_page(
            ask, self.console.routes, inner, title, notice=notice, **{"mark": "", **more}
        )
        return responses.html(text, status=status)

    # -- changes ---------------------------------------------------------------------------------

    async def _change(self, ask: Ask) -> Response:
        content_type = ask.headers.get("content-type", "")
        fields = body.fields_of(ask.body, content_type)
        is_form = content_type.startswith(body.FORM)
        if is_form == (ask.caller.token is not None):
            raise Refusal(
                Text("Browsers send forms, programs with a token send JSON."),
                status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            )
        verb = str(fields.get("_do", ""))
        change = ask.route.changes.get(verb)
        if change is None:
            raise Invalid(Text("There is no change {verb} here.", verb=verb[:80] or "?"), "_do")
        gate.check_change(ask, change)
        prepared = await change.prepare(ask, body.given(fields, change.given, is_form=is_form))
        plan = prepared.plan
        digest = responses.digest(plan.mark.encode() if plan.mark else responses.encode(plan))
        problem = self._why_not_yet(ask, change, plan, digest, fields, is_form=is_form)
        if problem is None and change.asks_password:
            try:
                await gate.check_password(ask, str(fields.get("_password", "")))
            except gate.PasswordNeeded as e:
                problem = e.text or _SHOW
        if problem is None:
            return await self._execute(ask, change, prepared)
        if ask.form == "json":
            if problem is _SHOW or ask.query.get("dry") == "1":
                return Response(responses.encode(plan), media_type="application/json")
            raise Conflict(problem)
        inner = render.content(
            ask, "plan.html", plan, change=change, fields=_again(fields), digest=digest,
            problem=None if problem is _SHOW else problem,
            needs_password=change.asks_password and not self._is_confirmed(ask),
        )  # fmt: skip
        status = 200 if problem is _SHOW else HTTPStatus.CONFLICT
        return self._whole(ask, inner, plan.title, status=status)

    def _why_not_yet(
        self, ask: Ask, change: Change, plan: Plan, digest: str, fields: Mapping[str, object],
        *, is_form: bool,
    ) -> Text | None:  # fmt: skip
        """Why the plan is answered instead of its execution; None: it is to be executed."""
        if ask.query.get("dry") == "1":
            return _SHOW
        known = fields.get("_plan")
        if known is None and is_form and change.has_plan:
            return _SHOW
        if known is not None and known != digest:
            return Text("Meanwhile something has changed: this is the plan now.")
        if plan.confirm and fields.get("_confirm") != plan.confirm:
            return Text("Type {name} to confirm.", name=plan.confirm)
        return None

    def _is_confirmed(self, ask: Ask) -> bool:
        session = ask.caller.session
        return session is not None and session.is_confirmed(ask.now_ms)

    async def _execute(self, ask: Ask, change: Change, prepared: Prepared) -> Response:
        verb = f"{change.verb} {ask.route.path}"
        try:
            done = await prepared.execute()
        except (Refusal, TianzhouError) as e:
            result = "refused" if isinstance(e, Refusal) else "failed"
            await responses.record(
                ask, verb, str(prepared.plan.title), result=result, reason=str(e)
            )
            # It may have been done in part.
            await ask.console.note_change(ask.path.get("cluster", ""))
            raise
        await responses.record(
            ask, verb, done.subject, before=done.before, after=done.after, cluster=done.cluster,
            result="partial" if done.is_partial else "ok",
            reason=str(done.notice) if done.is_partial else "",
        )  # fmt: skip
        await ask.console.note_change(ask.path.get("cluster", ""))
        return self._done(ask, done)

    def _done(self, ask: Ask, done: Done) -> Response:
        where = done.location or ask.here
        if ask.form == "json":
            shown = {
                "subject": done.subject, "notice": str(done.notice), "location": where,
                "result": done.result,
            }  # fmt: skip
            return Response(
                responses.encode(shown), media_type="application/json",
                status_code=HTTPStatus.MULTI_STATUS if done.is_partial else HTTPStatus.OK,
            )  # fmt: skip
        if done.template:
            inner = render.content(ask, done.template, done.result)
            return self._whole(ask, inner, done.notice)
        ask.new_cookies.append(
            responses.set_cookie(
                ask, responses.NOTICE, responses.notice_cookie(done.notice), max_age_s=60
            )
        )
        return responses.see_other(ask, where)

    # -- refusals --------------------------------------------------------------------------------

    def _login(self, ask: Ask, request: Request) -> Response:
        if ask.form != "html" or ask.caller.token is not None:
            refused = Refusal(Text("Log in first."), status=HTTPStatus.UNAUTHORIZED)
            return self._refused(ask, refused)
        back = ask.same() if ask.method in ("GET", "HEAD") else ""
        where = ask.url("/login", next=back.removeprefix(self.console.settings.root_path))
        if "hx-request" in request.headers:
            return Response(status_code=HTTPStatus.UNAUTHORIZED, headers={"HX-Redirect": where})
        return RedirectResponse(where, status_code=HTTPStatus.SEE_OTHER)

    def _refused(self, ask: Ask, refusal: Refusal) -> Response:
        retry = {"Retry-After": str(refusal.retry_s)} if refusal.retry_s is not None else {}
        if refusal.status == HTTPStatus.UNAUTHORIZED:
            retry["WWW-Authenticate"] = "Bearer"
        if ask.form != "html" or "authorization" in ask.headers:
            shown: dict[str, object] = {"error": str(refusal.text)}
            if isinstance(refusal, Invalid) and refusal.field:
                shown["field"] = refusal.field
            return Response(
                responses.encode(shown), status_code=refusal.status, headers=retry,
                media_type="application/json",
            )  # fmt: skip
        inner = render.content(ask, "error.html", None, refusal=refusal)
        if responses.is_fragment(ask):
            response = responses.html(inner, status=refusal.status)
        else:
            title = Text("{n}", n=int(refusal.status))
            response = self._whole(ask, inner, title, status=refusal.status)
        response.headers.update(retry)
        return response


# -- what a request is -----------------------------------------------------------------------------

_SHOW = Text("")
"""The plan was asked for: nothing is wrong."""


async def _no_answer(_: Ask) -> Response:
    raise NotFound


_NO_ROUTE = Route(path="", answer=_no_answer, title=Text("Not found"), who=Who.STRANGER)


def _again(fields: Mapping[str, object]) -> list[tuple[str, str]]:
    """The fields of a form, to be sent again with the plan."""
    pairs: list[tuple[str, str]] = []
    for name, value in fields.items():
        if name not in ("_plan", "_confirm", "_password"):
            values = cast("list[object]", value) if isinstance(value, list) else [value]
            pairs += [(name, str(each)) for each in values]
    return pairs


def _origin(request: Request, settings: ConsoleSettings) -> str:
    scheme = "https" if settings.is_https else str(request.scope["scheme"])
    return f"{scheme}://{request.headers.get('host', '')}"


def _theme(text: str) -> str:
    return text if text in ("dark", "light") else ""


def _machine_zone() -> str:
    return "UTC"
