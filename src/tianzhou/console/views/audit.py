"""The audit log: every change, with its person and address, with before and after."""

import msgspec

from tianzhou.console.accounts import audit as log_of_changes
from tianzhou.console.accounts.audit import Entry
from tianzhou.console.web import listing
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.listing import Listing


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """Changes, the newest first."""

    entries: Listing[Entry]


async def audit(ask: Ask) -> Audit:
    """Changes, the newest first; the database finds and cuts."""
    text = listing.text_of(ask)
    order = listing.order_of(ask, ("at",), "-at")
    size = listing.EXPORT_ROWS if ask.form == "csv" else listing.PAGE_ROWS
    _, total = await ask.database.read(lambda each: log_of_changes.search(each, "", limit=0))
    _, matching = await ask.database.read(lambda each: log_of_changes.search(each, text, limit=0))
    number, pages = listing.page_of(ask, matching, size)
    rows, _ = await ask.database.read(
        lambda each: log_of_changes.search(
            each, text, oldest_first=order == "at", offset=(number - 1) * size, limit=size
        )
    )
    return Audit(
        entries=listing.cut(
            rows, size, matching=matching, total=total, page=number, pages=pages, sort=order,
            find=text, sortable=("at",),
        )
    )  # fmt: skip
