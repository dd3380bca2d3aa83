"""The description of all routes, OpenAPI 3.1, made of the route table and the structs of views."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

import tianzhou
from tianzhou.console.text import Text
from tianzhou.console.web.route import Change, Plan, Route, Who

_JSON = "application/json"
_NAME = re.compile(r"\{(\w+)(?::path)?\}")
_QUERY = ("find", "sort", "page")


def description(routes: Iterable[Route], server: str) -> dict[str, Any]:
    """The document; pages are described as their `.json`."""
    listed = list(routes)
    pages = [each for each in listed if each.view is not None]
    kinds = [each.returns for each in pages] + [Plan, Done, Problem]
    kinds += [change.given for each in pages for change in each.changes.values()]
    schemas, components = msgspec.json.schema_components(
        kinds, schema_hook=_schema_of, ref_template="#/components/schemas/{name}"
    )
    of = {kind: schema for kind, schema in zip(kinds, schemas, strict=True)}
    paths: dict[str, Any] = {}
    for route in pages:
        address = "/index.json" if route.path == "/" else f"{route.path}.json"
        paths[address] = {"get": _get(route, of)}
        if route.changes:
            paths.setdefault(route.path, {})["post"] = _post(route, of)
    for route in listed:
        if route.answer is not None and route.who != Who.STRANGER:
            paths[route.path] = {"get": _plain(route)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tianzhou console",
            "version": tianzhou.__version__,
            "description": "Every page as JSON, and the changes that a token may make. "
            "`?dry=1` answers the plan of a change without making it.",
        },
        "servers": [{"url": server or "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "An API token."}
            },
        },
    }


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A refused request."""

    error: str
    field: str = ""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What a change has done."""

    subject: str
    notice: str
    location: str
    result: Any = None


def _get(route: Route, of: dict[Any, Any]) -> dict[str, Any]:
    parameters = [*_names(route)]
    if route.rows:
        parameters += [
            {"name": name, "in": "query", "schema": {"type": "string"}} for name in _QUERY
        ]
    return {
        "summary": str(route.title),
        "operationId": _operation("get", route.path),
        "tags": [_tag(route.path)],
        "parameters": parameters,
        "responses": {"200": _json("The page", of[route.returns]), **_problems(of)},
        "description": _rights(route.who, route.scope),
    }


def _post(route: Route, of: dict[Any, Any]) -> dict[str, Any]:
    changes = [each for each in route.changes.values() if each.scope]
    bodies = [_body(each, of) for each in changes] or [{"type": "object", "maxProperties": 0}]
    verbs = "; ".join(
        f"{each.verb}: {_rights(each.who, each.scope)}" for each in route.changes.values()
    )
    return {
        "summary": f"Change: {route.title}",
        "operationId": _operation("change", route.path),
        "tags": [_tag(route.path)],
        "description": verbs,
        "parameters": [
            *_names(route),
            {
                "name": "dry", "in": "query", "schema": {"type": "string", "enum": ["1"]},
                "description": "Answer the plan, change nothing",
            },
        ],
        "requestBody": {"required": True, "content": {_JSON: {"schema": {"oneOf": bodies}}}},
        "responses": {
            "200": _json("What was done, or the plan", {"anyOf": [of[Done], of[Plan]]}),
            **_problems(of),
        },
    }  # fmt: skip


def _body(change: Change, of: dict[Any, Any]) -> dict[str, Any]:
    verb = {
        "type": "object",
        "required": ["_do"],
        "properties": {
            "_do": {"const": change.verb},
            "_confirm": {"type": "string", "description": "The name that the plan asks for"},
            "_plan": {"type": "string", "description": "Refuse if the plan is another one now"},
        },
    }
    return {"allOf": [verb, of[change.given]]}


def _plain(route: Route) -> dict[str, Any]:
    return {
        "summary": str(route.title),
        "operationId": _operation("get", route.path),
        "tags": [_tag(route.path)],
        "parameters": [*_names(route)],
        "responses": {"200": {"description": str(route.title)}},
        "description": _rights(route.who, route.scope),
    }


def _names(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _NAME.findall(route.path)
    ]


def _json(text: str, schema: Any) -> dict[str, Any]:  # noqa: ANN401 - part of the document
    return {"description": text, "content": {_JSON: {"schema": schema}}}


def _problems(of: dict[Any, Any]) -> dict[str, Any]:
    texts = {"401": "No valid token", "403": "Not allowed", "404": "There is no such thing"}
    return {code: _json(text, of[Problem]) for code, text in texts.items()}


def _rights(who: Who, scope: str) -> str:
    may = "administrators" if who == Who.ADMINISTRATOR else "everyone who may log in"
    return f"{may}; token with scope {scope}" if scope else f"{may}; never by token"


def _operation(verb: str, path: str) -> str:
    return "_".join([verb, *re.findall(r"\w+", path)])


def _tag(path: str) -> str:
    parts = [part for part in path.split("/") if part and not part.startswith("{")]
    return next((part for part in parts if part != "c"), "overview")


def _schema_of(kind: type) -> dict[str, Any]:
    if kind is Text:
        return {"type": "string"}
    raise TypeError(f"{kind} has no schema")
