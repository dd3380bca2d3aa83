"""Dead letters and jobs against a real cluster: pages, resend, export, restart, cancel."""

import csv
import io
import json
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import httpx
import msgspec
import pytest

from tests.support.console.clients import ConsoleUnderTest, carry_out
from tests.support.console.clusters import add_dead_letters, admin_of, console_of, run_jobs
from tianzhou.admin import Admin
from tianzhou.console.changes import jobs as change_jobs
from tianzhou.console.jobs import rows
from tianzhou.console.jobs.kinds import KINDS
from tianzhou.console.jobs.worker import Running, Worker
from tianzhou.console.text import Text
from tianzhou.testing import Cluster

BASE = "/c/main"


@pytest.fixture(scope="module")
def cluster() -> Generator[Cluster]:
    with Cluster(topics={"orders": 1, "again": 2}) as made:
        yield made


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run jobs themselves, so changes need not wait for them."""
    monkeypatch.setattr(change_jobs, "WAIT_S", 0.0)


@pytest.fixture
async def console(cluster: Cluster, tmp_path: Path) -> AsyncGenerator[ConsoleUnderTest]:
    async with console_of(tmp_path, cluster.namesrv_address) as made:
        yield made


async def bodies_of(admin: Admin, topic: str) -> list[bytes]:
    found: list[bytes] = []
    for at in await admin.messages.read_queues(topic):
        end = await admin.offsets.end(at.broker, topic, at.queue_id)
        found += [each.body async for each in admin.messages.walk(at, 0, end)]
    return found


async def job_of(client: httpx.AsyncClient, number: int) -> dict[str, object]:
    found: dict[str, object] = (await client.get(f"{BASE}/jobs/{number}.json")).json()["job"]
    return found


# -- pages -----------------------------------------------------------------------------------------


async def test_letters_show_origin_tries_and_why_they_died(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    admin = admin_of(console)
    await add_dead_letters(admin, "shown", [b"first", b"<b>second</b>"])
    page = (await client.get(f"{BASE}/dead-letters/shown.json")).json()
    second, first = page["found"]["rows"]
    assert (first["preview"], first["origin_topic"], first["tries"]) == ("first", "orders", 1)
    assert first["reason"] == "given up by the consumer"
    assert (page["count"], page["retry_max"], page["kept_hours"]) == (2, 16, 72)
    assert page["expires_ms"] == first["stored_ms"] + 72 * 3600_000
    await add_dead_letters(admin, "used-up", [b"x"], retry_max=0)
    (letter,) = (await client.get(f"{BASE}/dead-letters/used-up.json")).json()["found"]["rows"]
    assert letter["reason"] == "retries used up"
    shown = (await client.get(f"{BASE}/dead-letters/shown")).text
    assert "&lt;b&gt;second&lt;/b&gt;" in shown
    assert second["preview"] == "<b>second</b>"


async def test_a_group_without_letters_and_one_that_is_not_there(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    await add_dead_letters(admin_of(console), "none", [])
    empty = await client.get(f"{BASE}/dead-letters/none")
    assert (empty.status_code, "No dead letters" in empty.text) == (200, True)
    assert (await client.get(f"{BASE}/dead-letters/no%25such%7Cgroup")).status_code == 404


async def test_cells_of_csv_are_no_formulas(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    bodies = [b"=1+1", b"+1", b"-1", b"@x", b"\tx", b"plain"]
    await add_dead_letters(admin_of(console), "formulas", bodies)
    page = await client.get(f"{BASE}/dead-letters/formulas.csv?sort=old")
    shown = [row["preview"] for row in csv.DictReader(io.StringIO(page.text))]
    assert shown == ["'=1+1", "'+1", "'-1", "'@x", "x", "plain"]
    fields = {"_do": "export", "format": "csv"}
    done = await carry_out(client, f"{BASE}/dead-letters/formulas", fields)
    await run_jobs(console)
    file = await client.get(f"{done.headers['location']}/output")
    exported = [row["body"] for row in csv.DictReader(io.StringIO(file.text.lstrip("\ufeff")))]
    assert exported == ["'=1+1", "'+1", "'-1", "'@x", "'\tx", "plain"]


# -- resend ----------------------------------------------------------------------------------------


async def test_chosen_letters_are_resent_to_their_group_only(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    admin = admin_of(console)
    ids = await add_dead_letters(admin, "billing", [b"one", b"two", b"three"])
    fields = {"_do": "resend", "ids": " ".join((ids[0], ids[2], ids[0]))}
    done = await carry_out(client, f"{BASE}/dead-letters/billing", fields)
    assert done.status_code == 303
    await run_jobs(console)
    page = (await client.get(f"{done.headers['location']}.json")).json()
    assert (page["job"]["state"], page["job"]["done"], page["job"]["failed"]) == ("done", 2, 0)
    assert [each["is_ok"] for each in page["items"]["rows"]] == [True, True]
    assert await bodies_of(admin, "%RETRY%billing") == [b"one", b"three"]
    verbs = [each["verb"] for each in (await client.get("/audit.json")).json()["entries"]["rows"]]
    assert verbs[:2] == ["job resend", "resend /c/{cluster}/dead-letters/{group}"]


async def test_letters_of_a_time_are_resent_to_a_topic_by_a_job(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    admin = admin_of(console)
    await add_dead_letters(admin, "many", [b"%d" % number for number in range(130)])
    fields = {"_do": "resend", "to": "topic", "topic": "again"}
    done = await carry_out(client, f"{BASE}/dead-letters/many", fields)
    assert (await client.get(done.headers["location"])).status_code == 200
    await run_jobs(console)
    assert sorted(await bodies_of(admin, "again"), key=int) == [b"%d" % n for n in range(130)]
    assert (await job_of(client, 1))["done"] == 130
    later = {**fields, "begin": "2099-01-01T00:00", "end": "2099-01-02T00:00"}
    assert (await client.post(f"{BASE}/dead-letters/many?dry=1", data=later)).status_code == 422


async def test_what_must_not_be_resent_is_refused(
    console: ConsoleUnderTest, client: httpx.AsyncClient, reader: httpx.AsyncClient
) -> None:
    admin = admin_of(console)
    own = await add_dead_letters(admin, "own", [b"own"])
    other = await add_dead_letters(admin, "other", [b"other"])
    address = f"{BASE}/dead-letters/own"
    for fields, status in (
        ({"ids": "x"}, 422), ({"to": "topic"}, 422), ({"to": "elsewhere", "topic": "again"}, 422),
        ({"to": "topic", "topic": "SCHEDULE_TOPIC_XXXX"}, 422),
        ({"to": "topic", "topic": "%DLQ%own"}, 422), ({"to": "topic", "topic": "nothing"}, 409),
        ({"ids": " ".join(f"{number:032X}" for number in range(501))}, 422),
    ):  # fmt: skip
        refused = await client.post(f"{address}?dry=1", data={"_do": "resend", **fields})
        assert refused.status_code == status, fields
    assert (await reader.post(address, data={"_do": "resend", "ids": own[0]})).status_code == 403
    # A letter of another group, and an id that leads to another machine.
    foreign = f"{other[0]} {'7F00000100000016' + '0' * 16}"
    done = await carry_out(client, address, {"_do": "resend", "ids": foreign})
    await run_jobs(console)
    page = (await client.get(f"{done.headers['location']}.json")).json()
    details = [each["detail"] for each in page["items"]["rows"]]
    assert page["job"]["failed"] == 2
    assert "not a dead letter of group own" in details[0]
    assert "no request was sent" in details[1]
    assert await bodies_of(admin, "%RETRY%own") == []


async def test_many_letters_need_the_name_typed(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    await add_dead_letters(admin_of(console), "crowd", [b"x"] * 501)
    answer = await carry_out(client, f"{BASE}/dead-letters/crowd", {"_do": "resend"})
    assert (answer.status_code, "Type crowd to confirm" in answer.text) == (409, True)
    assert (await client.get(f"{BASE}/jobs.json")).json()["jobs"]["total"] == 0


# -- jobs ------------------------------------------------------------------------------------------


async def test_an_export_has_every_letter_once_also_after_a_restart(
    console: ConsoleUnderTest, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [b"%d" % number for number in range(450)]
    await add_dead_letters(admin_of(console), "export", [*bodies, b"\xff\x00"])
    done = await carry_out(client, f"{BASE}/dead-letters/export", {"_do": "export"})
    number = int(done.headers["location"].rpartition("/")[2])
    refused = await client.get(f"{done.headers['location']}/output")
    assert refused.status_code == 404
    stores = 0
    store = Running.store

    async def killed(running: Running, position: object, content: bytes = b"") -> None:
        nonlocal stores
        stores += 1
        if stores == 2:
            # As a kill between two parts: nothing of the second one is stored.
            raise SystemExit
        await store(running, position, content)

    monkeypatch.setattr(Running, "store", killed)
    with pytest.raises(SystemExit):
        await run_jobs(console)
    job = await job_of(client, number)
    assert (job["state"], job["done"]) == ("running", 200)
    await run_jobs(console)
    assert (await job_of(client, number))["done"] == 200, "its claim has not run out"
    console.now_ms += rows.CLAIM_MS
    await run_jobs(console)
    assert (await job_of(client, number))["state"] == "done"
    file = await client.get(f"{done.headers['location']}/output")
    assert file.headers["content-disposition"].startswith("attachment")
    letters = [json.loads(line) for line in file.text.splitlines()]
    assert [each["body"] for each in letters[:-1]] == [each.decode() for each in bodies]
    assert letters[-1]["body_base64"] == "/wA="


class Steps(msgspec.Struct):
    count: int


async def test_a_job_is_cancelled_between_two_items(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    async def counting(running: Running) -> None:
        for number in range(msgspec.json.decode(running.body, type=Steps).count):
            running.item(str(number), is_ok=number != 1, detail="<i>")
            if number == 2:
                done = await carry_out(client, f"{BASE}/jobs/1", {"_do": "cancel"})
                assert done.status_code == 303
            await running.store(number)

    await add_job(console, Steps(5), "count")
    assert await Worker(console.console, {"count": counting}).run_one()
    page = (await client.get(f"{BASE}/jobs/1.json")).json()
    assert (page["job"]["state"], page["job"]["done"], page["job"]["failed"]) == ("cancelled", 3, 1)
    failed = (await client.get(f"{BASE}/jobs/1.json?only=failed")).json()
    assert [each["subject"] for each in failed["items"]["rows"]] == ["1"]
    shown = (await client.get(f"{BASE}/jobs/1")).text
    assert "&lt;i&gt;" in shown
    assert (await client.post(f"{BASE}/jobs/1", data={"_do": "cancel"})).status_code == 409


async def test_a_job_that_waits_is_cancelled_at_once_and_jobs_are_bounded(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    for _ in range(rows.JOBS_MAX):
        await add_job(console, Steps(1), "count")
    assert await add_job(console, Steps(1), "count") == 0
    await carry_out(client, f"{BASE}/jobs/3", {"_do": "cancel"})
    assert (await job_of(client, 3))["state"] == "cancelled"
    assert not (await client.get(f"{BASE}/jobs/x.json")).is_success


async def test_a_kind_that_fails_and_one_that_is_unknown_end_their_job_only(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    async def broken(running: Running) -> None:
        raise KeyError(running.job.id)

    await add_job(console, Steps(1), "broken")
    await add_job(console, Steps(1), "no-such-kind")
    worker = Worker(console.console, {**KINDS, "broken": broken})
    assert [await worker.run_one() for _ in range(3)] == [True, True, False]
    assert "log has the reason" in str((await job_of(client, 1))["reason"])
    assert "no-such-kind" in str((await job_of(client, 2))["reason"])


async def test_only_one_console_runs_a_job(console: ConsoleUnderTest) -> None:
    await add_job(console, Steps(1), "count")
    now_ms = console.now_ms
    first = await console.database.write(lambda each: rows.claim(each, "a", now_ms))
    assert first is not None
    assert await console.database.write(lambda each: rows.claim(each, "b", now_ms)) is None
    late_ms = now_ms + rows.CLAIM_MS
    second = await console.database.write(lambda each: rows.claim(each, "b", late_ms))
    assert second is not None
    progress = rows.Progress(position=b"1", done=1, failed=0, total=1)
    stored = await console.database.write(lambda each: rows.store(each, 1, "a", late_ms, progress))
    assert stored is None, "the job belongs to the other console now"


async def test_ended_jobs_are_deleted_after_a_week(console: ConsoleUnderTest) -> None:
    number = await add_job(console, Steps(1), "count")
    now_ms = console.now_ms
    await console.database.write(lambda each: rows.cancel(each, number, now_ms))
    late_ms = now_ms + rows.KEPT_MS + 1
    assert await console.database.write(lambda each: rows.prune(each, now_ms)) == []
    assert await console.database.write(lambda each: rows.prune(each, late_ms)) == [number]


async def add_job(console: ConsoleUnderTest, body: msgspec.Struct, kind: str) -> int:
    now_ms = console.now_ms
    return await console.database.write(
        lambda each: rows.add(
            each, now_ms, kind=kind, cluster="main", person="ada", title=Text("Count"), body=body,
            total=1,
        )
    )  # fmt: skip
