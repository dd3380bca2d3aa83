"""The console as a program: first start, TLS, proxies, one instance on SQLite, its command line."""

import asyncio
import os
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import trustme

from tests.support.brokers import eventually
from tests.support.console.clients import PASSWORD, carry_out
from tests.support.console.programs import SAME, running
from tests.support.ports import free_port
from tianzhou.clock import wall_ms
from tianzhou.console.accounts import audit, setup_codes
from tianzhou.console.settings import SETUP_CODE_MS, ClusterSettings, ConsoleSettings
from tianzhou.console.tables import ConsoleDatabase
from tianzhou.errors import ConfigError, RemotingError

NEW = {"login": "first", "name": "", "password": PASSWORD, "again": PASSWORD}


async def test_from_the_first_start_to_the_second(tmp_path: Path) -> None:
    settings = ConsoleSettings(
        listen_port=0,
        data=tmp_path,
        clusters=(ClusterSettings(name="main", namesrv="127.0.0.1:1"),),
    )
    async with running(settings) as server:
        assert server.setup_url.startswith(f"{server.url}/setup/")
        assert len(server.setup_url.rsplit("/", 1)[1]) == 24
        async with httpx.AsyncClient(headers=SAME, base_url=server.url) as browser:
            assert (await browser.get("/healthz")).text == "ok\n"
            assert (await browser.post(server.setup_url, data=NEW)).status_code == 303
            assert (await browser.get("/people")).status_code == 200
            head = await browser.head("/people")
            assert (head.status_code, head.content) == (200, b"")
            assert "server" not in head.headers
            metrics = (await browser.get("/metrics")).text
            assert (
                'tianzhou_console_requests_total{method="GET",route="/people",status="200"} 1.0'
                in metrics
            )
    async with running(settings) as server:
        assert server.setup_url == ""
        async with httpx.AsyncClient(headers=SAME, base_url=server.url) as browser:
            answer = await browser.post("/login", data={"login": "first", "password": PASSWORD})
            assert answer.headers["location"] == "/"


async def test_below_a_path_of_a_proxy(tmp_path: Path) -> None:
    settings = ConsoleSettings(listen_port=0, data=tmp_path, root_path="/mq")
    async with running(settings) as server:
        origin = server.url.removesuffix("/mq")
        async with httpx.AsyncClient(headers=SAME, base_url=origin) as browser:
            setup = server.setup_url.removeprefix(origin)
            assert setup.startswith("/mq/setup/")
            done = await browser.post(setup, data=NEW)
            assert done.headers["location"] == "/mq/"
            for where in ("/mq/people", "/people"):
                page = await browser.get(where)
                assert page.status_code == 200, "the proxy may take the path off, or not"
                links = [each.split('"')[0] for each in page.text.split('href="')[1:]]
                assert links
                assert all(each.startswith(("/mq/", "#")) for each in links), links
            done = await carry_out(
                browser, "/mq/people", {"_do": "add", "login": "x", "password": PASSWORD}
            )
            assert done.headers["location"] == "/mq/people"
            browser.cookies.clear()
            asked = await browser.get("/mq/people")
            assert asked.headers["location"] == "/mq/login?next=%2Fpeople"


async def test_with_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    settings = ConsoleSettings(
        listen_port=0, data=tmp_path, tls_cert=tmp_path / "both.pem", tls_key=tmp_path / "both.pem"
    )
    trusted = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    async with running(settings) as server:
        assert server.url.startswith("https://")
        async with httpx.AsyncClient(headers=SAME, verify=trusted) as browser:
            done = await browser.post(server.setup_url, data=NEW)
            assert done.headers["set-cookie"].startswith("__Host-tianzhou=")
            assert (await browser.get(f"{server.url}/people")).status_code == 200


async def test_a_bad_certificate_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("nothing")
    settings = ConsoleSettings(
        listen_port=0, data=tmp_path, tls_cert=tmp_path / "bad.pem", tls_key=tmp_path / "bad.pem"
    )
    with pytest.raises(ConfigError, match="--tls-cert"):
        async with running(settings):
            pass
    settings = ConsoleSettings(listen_port=0, data=tmp_path)
    async with running(settings):
        pass


async def test_a_port_in_use_is_one_error(tmp_path: Path) -> None:
    async with running(ConsoleSettings(listen_port=0, data=tmp_path / "a")) as first:
        port = int(first.url.rsplit(":", 1)[1])
        with pytest.raises(RemotingError, match="cannot listen"):
            async with running(ConsoleSettings(listen_port=port, data=tmp_path / "b")):
                pass


async def test_sqlite_has_one_console(tmp_path: Path) -> None:
    settings = ConsoleSettings(listen_port=0, data=tmp_path)
    async with running(settings):
        with pytest.raises(ConfigError, match="in use by another console"):
            async with running(settings):
                pass
    async with running(settings):
        pass


async def test_an_unused_link_forbids_a_start_for_other_machines(tmp_path: Path) -> None:
    settings = ConsoleSettings(listen_host="0.0.0.0", listen_port=0, data=tmp_path)  # noqa: S104
    async with running(settings) as server:
        assert server.setup_url.startswith("http://127.0.0.1:")
        assert server.console is not None
        now_ms = server.console.now_ms()
        await server.console.database.write(
            lambda each: setup_codes.make(each, now_ms - SETUP_CODE_MS, SETUP_CODE_MS)
        )
    with pytest.raises(ConfigError, match="user add"):
        async with running(settings):
            pass
    async with running(ConsoleSettings(listen_port=0, data=tmp_path)) as server:
        assert server.setup_url, "on loopback there is a new link"


async def test_a_container_gets_its_administrator_from_the_environment(tmp_path: Path) -> None:
    settings = ConsoleSettings(listen_port=0, data=tmp_path)
    mail = "ops@example.com"
    with pytest.raises(ConfigError, match="at least 12"):
        async with running(settings, admin_mail=mail, admin_password="short"):  # noqa: S106
            pass
    for _ in range(2):
        async with running(settings, admin_mail=mail, admin_password=PASSWORD) as server:
            assert server.setup_url == ""
            async with httpx.AsyncClient(headers=SAME, base_url=server.url) as browser:
                answer = await browser.post("/login", data={"login": mail, "password": PASSWORD})
                assert answer.headers["location"] == "/"


async def test_old_rows_of_the_audit_log_are_deleted(tmp_path: Path) -> None:
    settings = ConsoleSettings(listen_port=0, data=tmp_path)
    database = ConsoleDatabase(settings.database_url)
    now_ms = wall_ms()
    with database.engine.begin() as connection:
        for age_days in (399, 401):
            at_ms = now_ms - age_days * 24 * 3600_000
            audit.record(connection, at_ms, person="x", verb="v", subject="s", result="ok")
    database.close()
    async with running(settings) as server:
        assert server.console is not None
        rows = server.console.database

        async def is_one() -> bool:
            return (await rows.read(lambda each: audit.search(each, "", limit=9)))[1] == 1

        await eventually(is_one, "the older row deleted")


def test_a_database_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'c.db'}"
    database = ConsoleDatabase(url)
    with database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE console_schema SET version = 99")
    database.close()
    with pytest.raises(ConfigError, match="upgrade Tianzhou"):
        ConsoleDatabase(url)


def test_only_its_owner_reads_the_database(tmp_path: Path) -> None:
    database = ConsoleDatabase(f"sqlite:///{tmp_path / 'c.db'}")
    database.close()
    assert (tmp_path / "c.db").stat().st_mode & 0o077 == 0


# -- the command line ------------------------------------------------------------------------------


def command(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tianzhou", "console", *words],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "TIANZHOU_CONSOLE_PASSWORD": PASSWORD, **environ},
    )  # fmt: skip


async def can_log_in(folder: Path, login: str, password: str = PASSWORD) -> bool:
    settings = ConsoleSettings(listen_port=0, data=folder / "data/console")
    async with running(settings) as server, httpx.AsyncClient(headers=SAME) as browser:
        form = {"login": login, "password": password}
        answer = await browser.post(f"{server.url}/login", data=form)
        return answer.status_code == 303


async def test_accounts_on_the_command_line(tmp_path: Path) -> None:
    added = command(tmp_path, "user", "add", "ops", "--admin")
    assert (added.returncode, added.stdout) == (0, "ops was added as administrator\n"), added
    again = command(tmp_path, "user", "add", "ops")
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)
    assert "already" in again.stderr
    assert await can_log_in(tmp_path, "ops")
    assert command(tmp_path, "user", "disable", "ops").returncode == 0
    assert not await can_log_in(tmp_path, "ops")
    other = "another good phrase"
    done = command(tmp_path, "user", "password", "ops", TIANZHOU_CONSOLE_PASSWORD=other)
    assert done.returncode == 0
    assert await can_log_in(tmp_path, "ops", other)
    weak = command(tmp_path, "user", "password", "ops", TIANZHOU_CONSOLE_PASSWORD="short")  # noqa: S106
    assert "at least 12 characters" in weak.stderr
    unknown = command(tmp_path, "user", "disable", "who")
    assert "known: ops" in unknown.stderr
    missing = command(tmp_path, "token", "revoke", "7")
    assert "there is no token 7" in missing.stderr


async def test_the_command_serves_and_stops_on_a_signal(tmp_path: Path) -> None:
    port = free_port()
    words = [sys.executable, "-m", "tianzhou", "console", "--listen", f"127.0.0.1:{port}",
             "--namesrv", "prod=127.0.0.1:1", "--namesrv", "127.0.0.1:2"]  # fmt: skip
    program = await asyncio.create_subprocess_exec(
        *words, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert program.stdout is not None
        line = (await asyncio.wait_for(program.stdout.readline(), 60)).decode()
        assert line.startswith(f"console: open http://127.0.0.1:{port}/setup/")
        url = line.split()[2]
        async with httpx.AsyncClient(headers=SAME) as browser:
            assert (await browser.post(url, data=NEW)).status_code == 303
            shown = (await browser.get(f"http://127.0.0.1:{port}/index.json")).json()
        assert [each["name"] for each in shown["clusters"]] == ["prod", "default"]
    finally:
        program.terminate()
        _, errors = await asyncio.wait_for(program.communicate(), 60)
    assert program.returncode == 0, errors
    assert b"Traceback" not in errors


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--listen", "nowhere:x"], "ADDRESS:PORT"),
        (["--root-path", "mq"], "--root-path"),
        (["--tls-cert", "a.pem"], "--tls-key"),
        (["--trusted-proxies", "10.0.0.0/99"], "--trusted-proxies"),
        (["--namesrv", "a b=x:1"], "cluster name"),
        (["--namesrv", "x:1", "--namesrv", "y:1"], "two clusters"),
        (["--context", "nothing"], "there is no context"),
        (["--oidc-issuer", "https://x"], "--oidc-client-id"),
        (["--database", "mysql://x/y"], "SQLite and PostgreSQL"),
        (["user"], "required"),
    ],
)
def test_a_wrong_option_is_one_line(words: list[str], reason: str, tmp_path: Path) -> None:
    done = command(tmp_path, *words, TIANZHOU_CONFIG_DIR=str(tmp_path))
    assert done.returncode != 0
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_help_of_the_command_line_imports_nothing_of_the_console() -> None:
    code = (
        "import sys\nsys.argv = ['tianzhou', '--help']\n"
        "from tianzhou.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "sys.stderr.write(' '.join(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True
    )
    loaded = set(done.stderr.split())
    heavy = {"starlette", "uvicorn", "jinja2", "sqlalchemy", "argon2", "tianzhou.console"}
    assert not heavy & loaded
