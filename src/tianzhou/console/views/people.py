"""People of the console; for administrators."""

import msgspec

from tianzhou.console.accounts import people as rows_of_people
from tianzhou.console.accounts.people import Person
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.listing import Listing, listing
from tianzhou.console.web.refusals import NotFound


class People(msgspec.Struct, frozen=True, kw_only=True):
    """Everyone who may log in."""

    people: Listing[Person]


class PersonPage(msgspec.Struct, frozen=True, kw_only=True):
    """One person."""

    person: Person
    is_self: bool


async def people(ask: Ask) -> People:
    """Everyone who may log in."""
    everyone = await ask.database.read(rows_of_people.listed)
    return People(
        people=listing(
            ask,
            everyone,
            find=lambda each: (each.login, each.name, each.mail),
            sort={
                "login": lambda each: each.login,
                "name": lambda each: each.name.casefold() or None,
                "role": lambda each: not each.is_admin,
                "last": lambda each: each.last_ms,
            },
            first="login",
        )
    )


async def person(ask: Ask) -> PersonPage:
    """One person: rights, access, password."""
    found = await person_of(ask)
    return PersonPage(person=found, is_self=found.id == ask.person.id)


async def person_of(ask: Ask) -> Person:
    """The person in the address. Raises NotFound."""
    text = ask.path["person"]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise NotFound
    found = await ask.database.read(lambda each: rows_of_people.by_id(each, int(text)))
    if found is None:
        raise NotFound
    return found
