"""People: the list, and changes with plan, confirmation and audit."""

import httpx

from tests.support.console.clients import PASSWORD, ConsoleUnderTest, carry_out, plan_of

NEW = {"_do": "add", "login": "Grace", "name": "Grace H.", "password": PASSWORD}


async def test_a_list_is_found_sorted_and_cut(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    for number in range(60):
        await console.add(f"person-{number:02}")
    first = (await client.get("/people.json?sort=-login")).json()["people"]
    assert [each["login"] for each in first["rows"][:2]] == ["rita", "person-59"]
    assert (first["total"], first["pages"], len(first["rows"])) == (62, 2, 50)
    second = (await client.get("/people.json?sort=-login&page=2")).json()["people"]
    assert second["rows"][-1]["login"] == "ada"
    found = (await client.get("/people.json?find=PERSON 07")).json()["people"]
    assert [each["login"] for each in found["rows"]] == ["person-07"]
    page = (await client.get("/people?find=07")).text
    assert "person-07" in page
    assert "person-08" not in page


async def test_an_open_page_that_asks_again_gets_only_what_is_new(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    asks = {"HX-Request": "true", "HX-Target": "main#page"}
    part = await client.get("/people", headers=asks)
    assert part.text.startswith("<main")
    assert '<nav class="side"' not in part.text
    again = {**asks, "If-None-Match": part.headers["etag"]}
    assert (await client.get("/people", headers=again)).status_code == 304
    await console.add("new")
    assert (await client.get("/people", headers=again)).status_code == 200


async def test_a_change_is_planned_then_done_then_in_the_audit_log(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    planned = await client.post("/people?dry=1", data=NEW)
    assert planned.status_code == 200
    assert "Add the person Grace" in planned.text
    assert len((await client.get("/people.json")).json()["people"]["rows"]) == 2
    done = await client.post("/people", data={**NEW, "_plan": plan_of(planned)})
    assert (done.status_code, done.headers["location"]) == (303, "/people")
    rows = (await client.get("/people.json")).json()["people"]["rows"]
    assert [each["login"] for each in rows] == ["ada", "grace", "rita"]
    entry = (await client.get("/audit.json")).json()["entries"]["rows"][0]
    assert (entry["person"], entry["subject"], entry["result"]) == ("ada", "Grace", "ok")
    assert "grace" in entry["after"]
    assert PASSWORD not in str(entry)


async def test_a_form_without_its_plan_changes_nothing(client: httpx.AsyncClient) -> None:
    answer = await client.post("/people", data=NEW)
    assert "Add the person Grace" in answer.text
    assert len((await client.get("/people.json")).json()["people"]["rows"]) == 2


async def test_the_last_administrator_stays(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    refused = await carry_out(client, "/people/1", {"_do": "disable"})
    assert refused.status_code == 409
    assert "last administrator" in refused.text
    entry = (await client.get("/audit.json")).json()["entries"]["rows"][0]
    assert (entry["result"], entry["verb"]) == ("refused", "disable /people/{person}")


async def test_disabling_a_person_ends_sessions_and_tokens_at_once(
    console: ConsoleUnderTest, client: httpx.AsyncClient, reader: httpx.AsyncClient
) -> None:
    program = await console.program("rita", "read")
    assert (await reader.get("/")).status_code == 200
    assert (await program.get("/index.json")).status_code == 200
    assert (await carry_out(client, "/people/2", {"_do": "disable"})).status_code == 303
    assert (await reader.get("/")).status_code == 303
    assert (await program.get("/index.json")).status_code == 401
