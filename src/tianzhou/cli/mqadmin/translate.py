"""Translating the options of one mqadmin call to the arguments of our commands, by templates.

    topic update {t} --or-create @where --perm?p --ordered/--not-ordered?o

    word           itself                        {t} {k}={v}  values of options; required
    {t}?           the value, if given           {i},         the values that commas separate
    --perm?p       our option with the value of -p, if given; --perm?p:6 has a default
    --on/--off?o   our switch for "true" or "false", if given; either may be empty
    --topic*t      our option for each of the values that commas separate; with a second one,
                   --add/--remove*a, that one for values "-x", and the first for "+x" and "x"
    !l             accepted without effect: always so here, or meaningless here
    @where         --broker or --cluster; as with the original a broker takes precedence
    @target        the broker or cluster as an argument

A subcommand whose options depend on each other has a function, which chooses between templates.
`GivenOptions` records which options were read, so that the others can be rejected.
"""

import re
from collections.abc import Callable

_VALUE = re.compile(r"\{(\w+)\}")
_MARKED = re.compile(r"(.+)([?*,])(\w*):?(\w*)")


class GivenOptions:
    """The options of one call; records which were read."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> str:
        """Raises KeyError if the option is missing."""
        self.used.add(name)
        return self._values[name]

    def get(self, name: str) -> str | None:
        self.used.add(name)
        return self._values.get(name)

    def is_true(self, name: str, default: str = "false") -> bool:
        return (self.get(name) or default).lower() == "true"

    def expand(self, template: str) -> list[str]:
        """Our arguments by a template. Raises KeyError if a required option is missing."""
        return [argument for part in template.split() for argument in self._expand(part)]

    def _expand(self, part: str) -> list[str]:
        if part.startswith("!"):
            self.used.add(part[1:])
            return []
        if part.startswith("@"):
            self.used |= {"b", "c"}
            if part == "@target":
                return [self.get("b") or self["c"]]
            return self._option("--broker", "b") or self._option("--cluster", "c")
        marked = _MARKED.fullmatch(part)
        if marked is None:
            return [_VALUE.sub(lambda found: self[found[1]], part)]
        text, mark, name, default = marked.groups()
        if mark == ",":
            return self[text[1:-1]].split(",")
        if not name:
            value = self.get(text[1:-1])
            return [value] if value else []
        if mark == "*":
            return self._each(text, name)
        return self._option(text, name, default)

    def _option(self, text: str, name: str, default: str = "") -> list[str]:
        value = self.get(name) or default if default else self.get(name)
        if value is None:
            return []
        on, is_switch, off = text.partition("/")
        if not is_switch:
            return [text, value]
        chosen = on if value.lower() == "true" else off
        return [chosen] if chosen else []

    def _each(self, text: str, name: str) -> list[str]:
        add, has_removal, remove = text.partition("/")
        arguments: list[str] = []
        for value in map(str.strip, (self.get(name) or "").split(",")):
            if has_removal and value.startswith("-"):
                arguments += [remove, value[1:]]
            elif value:
                arguments += [add, value.removeprefix("+") if has_removal else value]
        return arguments


Build = Callable[[GivenOptions], list[str]]


# -- topics, groups, offsets -----------------------------------------------------------------------


def order(o: GivenOptions) -> list[str]:
    method = o["m"]
    if method == "put":
        return o.expand("namesrv kv put ORDER_TOPIC_CONFIG {t} {v}")
    # The value is only needed to put.
    if method == "delete":
        return o.expand("namesrv kv delete ORDER_TOPIC_CONFIG {t} --yes !v")
    return o.expand("namesrv kv get ORDER_TOPIC_CONFIG {t} !v")


def progress(o: GivenOptions) -> list[str]:
    # The member that holds a queue (-s) is always shown. As with the original, the list of groups
    # is of all topics, and the cluster only finds the brokers of a topic.
    if o.get("g") is None:
        return o.expand("group list --cluster?c !s !t")
    through = "!c" if o.get("t") is None else "--through?c"
    return o.expand(f"group show {{g}} --topic?t {through} !s")


def reset(o: GivenOptions) -> list[str]:
    arguments = o.expand("offset reset {g} {t} --yes --broker?b --queue?q")
    when = o["s"]
    to_time = ["--to", {"-1": "latest", "-2": "earliest"}.get(when, when)]
    arguments += o.expand("--to-offset?o") or to_time
    # In 4.9 -c is a switch: the consumers are C++ clients. In 5.x it finds the brokers.
    cluster, is_for_cpp = o.get("c"), bool(o.get("cplus"))
    arguments += o.expand("--cpp" if is_for_cpp or cluster == "true" else "--through?c")
    return arguments if o.is_true("f", "true") else [*arguments, "--only-back"]


def skip(o: GivenOptions) -> list[str]:
    if o.is_true("f", "true"):
        return o.expand("offset skip {g} {t} --yes --through?c")
    return o.expand("offset reset {g} {t} --yes --to latest --only-back --through?c")


# -- messages --------------------------------------------------------------------------------------


def by_id(o: GivenOptions) -> list[str]:
    ids = [each.strip() for each in o["i"].split(",") if each.strip()]
    group, client = o.get("g"), o.get("d")
    if group is not None and client is not None:
        # As with the original, pushing takes precedence.
        verb, more = "push", "--group {g} --client {d} !s !u !f --topic?t --through?c"
    elif o.is_true("s"):
        # A unit is part of a client id, which is not visible for a client that only sends.
        verb, more = "resend", "--topic?t --through?c !u !f"
    else:
        verb, more = "show", "--topic?t --through?c --charset?f !u"
    return ["message", verb, *ids, *o.expand(more)]


def by_unique_key(o: GivenOptions) -> list[str]:
    group, client = o.get("g"), o.get("d")
    if group is not None and client is not None:
        return o.expand(
            "message push {i} --group {g} --client {d} --topic {t} --through?c !a !s !e"
        )
    # All messages with the key are shown, with -a or without.
    return o.expand("message query {t} --unique-key {i} --from?s --to?e --through?c !a")


def print_queue(o: GivenOptions) -> list[str]:
    arguments = o.expand(f"{PRINT_MESSAGES} --broker {{a}} --queue {{i}} --count-tags/?f")
    # With counts the messages are not listed, unless requested.
    is_listed = o.is_true("p", "false" if "--count-tags" in arguments else "true")
    return arguments if is_listed else [*arguments, "--no-list"]


PRINT_MESSAGES = (
    "message query {t} --from?b:earliest --limit 1000000 --to?e --tag?s --charset?c "
    "--body/--no-body?d"
)


# -- brokers, clusters, access ---------------------------------------------------------------------


def clusters(o: GivenOptions) -> list[str]:
    if o.get("i") is None:
        return o.expand(("cluster top --once" if o.get("m") else "cluster show") + " --cluster?c")
    if o.get("m"):
        return o.expand("cluster top --cluster?c --every {i}")
    return o.expand("cluster show --cluster?c --every {i} --watch")


def ha(o: GivenOptions) -> list[str]:
    watch = "" if o.get("i") is None else "--every {i} --watch"
    return o.expand(f"broker ha @target {watch}")


def latency(o: GivenOptions) -> list[str]:
    # As with the original: only log lines (-p) contain the machine room (-m).
    room = "--room?m" if o.is_true("p") else "!m"
    return o.expand(
        f"cluster latency --count?a --size?s --cluster?c --every?i:10 --lines/?p {room}"
    )


def lag(o: GivenOptions) -> list[str]:
    arguments = o.expand("broker lag {b} --min-lag?l --orderly/?o")
    wait = o.get("t")
    if wait is None:
        return arguments
    # Our option rejects what is not a number.
    return [*arguments, "--timeout", f"{int(wait) / 1000:g}" if wait.isdecimal() else wait]


def change_broker(o: GivenOptions) -> list[str]:
    arguments = o.expand("broker config @target --set {k}={v} --yes")
    # As with the original any value counts as true.
    is_for_slaves = o.get("a") is not None
    return arguments if is_for_slaves or o.get("b") else [*arguments, "--masters"]


def export_metadata(o: GivenOptions) -> list[str]:
    arguments = o.expand("cluster export metadata !c")
    # As with the original, a broker takes precedence over a cluster, topics over groups.
    arguments += o.expand("--broker?b") or o.expand("--cluster {c}")
    arguments += o.expand("--folder?f --special/?s")
    topics, groups = o.get("t"), o.get("g")
    only = "topics" if topics else "groups" if groups else None
    return [*arguments, "--only", only] if only else arguments
