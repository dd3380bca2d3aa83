"""The description of the API: it is OpenAPI 3.1, and it describes what the routes answer."""

import re
from typing import Any

import httpx
import msgspec

from tests.support.console.clients import ConsoleUnderTest
from tianzhou.console.app import ROUTES
from tianzhou.console.web.route import Who


class Strict(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An object of OpenAPI 3.1, with the fields that we use."""


class Media(Strict):
    schema: dict[str, Any]


class Answer(Strict):
    description: str
    content: dict[str, Media] = {}


class Parameter(Strict):
    name: str
    where: str = msgspec.field(name="in")
    schema: dict[str, Any]
    required: bool = False
    description: str = ""


class Body(Strict):
    content: dict[str, Media]
    required: bool = False


class Operation(Strict):
    summary: str
    operation_id: str = msgspec.field(name="operationId")
    tags: list[str]
    parameters: list[Parameter]
    responses: dict[str, Answer]
    description: str = ""
    body: Body | None = msgspec.field(name="requestBody", default=None)


class Item(Strict):
    get: Operation | None = None
    post: Operation | None = None


class Document(Strict):
    openapi: str
    info: dict[str, str]
    servers: list[dict[str, str]]
    security: list[dict[str, list[str]]]
    paths: dict[str, Item]
    components: dict[str, dict[str, Any]]


async def document_of(console: ConsoleUnderTest) -> tuple[Document, dict[str, Any]]:
    program = await console.program("ada", "read")
    answer = await program.get("/openapi.json")
    assert answer.status_code == 200
    return msgspec.json.decode(answer.content, type=Document), answer.json()


async def test_the_description_is_well_formed(console: ConsoleUnderTest) -> None:
    document, plain = await document_of(console)
    assert document.openapi == "3.1.0"
    assert {"title", "version"} <= document.info.keys()
    operations = [
        (path, each)
        for path, item in document.paths.items()
        for each in (item.get, item.post)
        if each is not None
    ]
    ids = [each.operation_id for _, each in operations]
    assert len(ids) == len(set(ids))
    for path, each in operations:
        assert path.startswith("/")
        in_path = {it.name for it in each.parameters if it.where == "path"}
        assert in_path == set(re.findall(r"\{(\w+)\}", path)), path
        assert all(it.required for it in each.parameters if it.where == "path")
        assert all(re.fullmatch(r"[1-5]\d\d", code) for code in each.responses)
    wanted = set(
        re.findall(r'"\$ref": ?"#/components/schemas/([^"]+)"', msgspec.json.encode(plain).decode())
    )
    assert wanted
    assert wanted <= document.components["schemas"].keys()


async def test_every_page_and_change_is_described(console: ConsoleUnderTest) -> None:
    document, _ = await document_of(console)
    for route in ROUTES:
        if route.view is not None:
            path = "/index.json" if route.path == "/" else f"{route.path}.json"
            item = document.paths[path]
            assert item.get is not None
        if route.changes:
            posted = document.paths[route.path].post
            assert posted is not None
            for verb in route.changes:
                assert f"{verb}:" in posted.description
        if route.who == Who.STRANGER:
            assert route.path not in document.paths


async def test_what_a_page_answers_fits_its_description(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    _, plain = await document_of(console)
    schemas = plain["components"]["schemas"]
    answer = (await client.get("/people.json")).json()
    assert set(answer) == set(schemas["People"]["properties"])
    row = answer["people"]["rows"][0]
    assert set(row) == set(schemas["Person"]["properties"])
