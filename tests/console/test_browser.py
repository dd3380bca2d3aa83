"""The foundation in a real browser: Chromium, with and without JavaScript."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, ConsoleMessage, Page, Request, expect
from sqlalchemy import Connection

from tests.support.console.browsers import chromium
from tests.support.console.clients import PASSWORD
from tests.support.console.programs import running
from tianzhou.console.accounts import people
from tianzhou.console.server import ConsoleServer
from tianzhou.console.settings import ConsoleSettings

LOGIN = "ops@example.com"
PAGES = ("/", "/people", "/people/1", "/me", "/audit", "/settings", "/login", "/nothing")
PHONE = {"width": 390, "height": 844}
WIDE = {"width": 1440, "height": 900}


@asynccontextmanager
async def console(folder: Path) -> AsyncGenerator[ConsoleServer]:
    settings = ConsoleSettings(listen_port=0, data=folder)
    async with running(settings, admin_mail=LOGIN, admin_password=PASSWORD) as server:
        assert server.console is not None
        now_ms = server.console.now_ms()

        def add(connection: Connection) -> None:
            for number in range(60):
                people.add(connection, f"person-{number:02}", now_ms)

        await server.console.database.write(add)
        yield server


@asynccontextmanager
async def page_of(
    browser: Browser,
    server: ConsoleServer,
    **more: Any,  # noqa: ANN401 - options of playwright
) -> AsyncGenerator[tuple[Page, list[str]]]:
    """A logged-in page, and what it complained of or asked other sites."""
    options: dict[str, Any] = {"viewport": WIDE, "locale": "en-US", **more}
    context = await browser.new_context(**options)
    page = await context.new_page()
    faults: list[str] = []

    def said(message: ConsoleMessage) -> None:
        faults.append(f"{message.type}: {message.text}")

    def asked(request: Request) -> None:
        if not request.url.startswith(server.url):
            faults.append(request.url)

    page.on("console", said)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", asked)
    await page.goto(f"{server.url}/people")
    await page.locator("[name=login]").fill(LOGIN)
    await page.locator("[name=password]").fill(PASSWORD)
    await page.locator("main button").click()
    await expect(page).to_have_url(f"{server.url}/people")
    if more.get("java_script_enabled", True):
        await expect(page.locator("html")).to_have_class("js")
    yield page, faults
    await context.close()


async def test_finding_sorting_and_turning_pages_keep_the_address(tmp_path: Path) -> None:
    async with (
        console(tmp_path) as server,
        chromium() as browser,
        page_of(browser, server) as (page, faults),
    ):
        rows = page.locator("tbody tr")
        await expect(rows).to_have_count(50)
        await page.keyboard.press("]")
        await expect(page).to_have_url(re.compile("page=2"))
        await expect(rows).to_have_count(11)
        await page.go_back()
        await expect(rows).to_have_count(50)
        await page.keyboard.press("/")
        await page.keyboard.type("person-5")
        await expect(rows).to_have_count(10)
        await expect(page).to_have_url(f"{server.url}/people?find=person-5")
        await expect(page.locator("#find")).to_be_focused()
        await page.keyboard.press("Escape")
        await page.locator("th a").first.click()
        await expect(rows.first).to_contain_text("person-59")
        await page.reload()
        await expect(rows.first).to_contain_text("person-59")
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await expect(page.locator("h1")).to_have_text("person-58")
        await page.keyboard.press("?")
        await expect(page.locator("#keys")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.locator("#keys")).to_be_hidden()
        assert faults == []


async def test_a_change_by_clicks_with_and_without_javascript(tmp_path: Path) -> None:
    async with console(tmp_path) as server, chromium() as browser:
        for has_script, verb, badge in (
            (True, "Disable", "disabled"),
            (False, "Enable", "enabled"),
        ):
            async with page_of(browser, server, java_script_enabled=has_script) as (page, faults):
                await page.goto(f"{server.url}/people/3")
                await page.get_by_role("button", name=f"{verb}…").click()
                await expect(page.locator("h1")).to_have_text(f"{verb} person-01")
                await page.get_by_role("button", name=verb, exact=True).click()
                await expect(page.locator(".notice")).to_have_text(f"person-01 was {badge}.")
                await expect(page.locator(".head .badge")).to_have_text(badge)
                await page.goto(f"{server.url}/audit")
                await expect(page.locator("tbody tr").first).to_contain_text("person-01")
                assert faults == []


async def test_language_and_theme_are_switched(tmp_path: Path) -> None:
    async with (
        console(tmp_path) as server,
        chromium() as browser,
        page_of(browser, server) as (page, faults),
    ):
        for name, value in (("theme", "dark"), ("language", "zh"), ("theme", "light")):
            await page.locator(".person summary").click()
            await page.locator(f"button[name={name}][value={value}]").click()
            await expect(page).to_have_url(f"{server.url}/people")
            where = page.locator("html")
            wanted = ("lang", "zh-CN") if name == "language" else ("data-theme", value)
            await expect(where).to_have_attribute(*wanted)
        await expect(page.locator("h1")).to_have_text("人员")
        assert faults == []


async def test_every_page_fits_a_phone_in_both_languages_and_themes(tmp_path: Path) -> None:
    async with console(tmp_path) as server, chromium() as browser:
        for locale, scheme in (("en-US", "light"), ("zh-CN", "dark")):
            async with page_of(
                browser, server, viewport=PHONE, locale=locale, color_scheme=scheme
            ) as (page, faults):
                for path in PAGES:
                    await page.goto(f"{server.url}{path}")
                    box = await page.locator("html").bounding_box()
                    body = await page.locator("body").evaluate("each => each.scrollWidth")
                    assert box is not None
                    assert body <= PHONE["width"], (path, locale)
                allowed = (
                    "error: Failed to load resource: the server responded with a status of 404"
                )
                assert [each for each in faults if not each.startswith(allowed)] == []
