"""Translations of mqadmin subcommands whose options do not map to one flag each.

Each function reads options from `GivenOptions`, which records the reads, so that options that were
not read can be rejected.
"""

from collections.abc import Callable

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
_MANY = "1000000"


class GivenOptions:
    """The options of one call; records which were read."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> str:
        """Raises KeyError if the option is missing."""
        self.used.add(name)
        return self._values[name]

    def get(self, name: str, default: str | None = None) -> str | None:
        self.used.add(name)
        return self._values.get(name, default)

    def is_true(self, name: str, default: str = "false") -> bool:
        return (self.get(name) or default).lower() == "true"

    def ignore(self, *names: str) -> list[str]:
        """Accept options without effect: always so here, or meaningless here; returns no arguments.

        The caller says why in a comment.
        """
        self.used.update(names)
        return []

    def flag(self, name: str, ours: str) -> list[str]:
        """Our option with the value of theirs, if given."""
        value = self.get(name)
        return [] if value is None else [ours, value]

    def switch(self, name: str, on: str, off: str | None = None) -> list[str]:
        """Our switch for "true" or "false", if given."""
        value = self.get(name)
        if value is None:
            return []
        switch_argument = on if value.lower() == "true" else off
        return [switch_argument] if switch_argument else []

    def where(self, broker: str = "b", cluster: str = "c") -> list[str]:
        """--broker or --cluster; as with the original a broker takes precedence."""
        self.ignore(cluster)
        return self.flag(broker, "--broker") or self.flag(cluster, "--cluster")

    def broker_or_cluster(self) -> str:
        """The argument that may be a broker or a cluster. Raises KeyError if neither is given."""
        self.ignore("c")
        return self.get("b") or self["c"]


Build = Callable[[GivenOptions], list[str]]


# -- topics and groups -----------------------------------------------------------------------------


def attributes(o: GivenOptions, name: str) -> list[str]:
    """Changes of attributes, "+a=b,-c"."""
    arguments: list[str] = []
    for change in (o.get(name) or "").split(","):
        text = change.strip()
        if text.startswith("-"):
            arguments += ["--remove-attribute", text[1:]]
        elif text:
            arguments += ["--attribute", text.removeprefix("+")]
    return arguments


def update_topic(o: GivenOptions) -> list[str]:
    # As with the original: options not given are reset to defaults, also of existing topics.
    arguments = ["topic", "update", o["t"], "--or-create", "--from-defaults", *o.where()]
    arguments += (
        o.flag("r", "--read-queues") + o.flag("w", "--write-queues") + o.flag("p", "--perm")
    )
    arguments += o.switch("o", "--ordered", "--not-ordered")
    arguments += o.switch("u", "--unit", "--no-unit")
    return arguments + o.switch("s", "--unit-sub", "--no-unit-sub") + attributes(o, "a")


def update_group(o: GivenOptions) -> list[str]:
    arguments = ["group", "update", o["g"], "--or-create", "--from-defaults", *o.where()]
    arguments += o.switch("s", "--consume", "--no-consume")
    # The original sets these two itself, not to the defaults of a group.
    arguments += o.switch("m", "--from-min", "--not-from-min") or ["--not-from-min"]
    arguments += o.switch("d", "--broadcast", "--no-broadcast") or ["--no-broadcast"]
    arguments += o.switch("o", "--orderly", "--not-orderly")
    arguments += o.switch("a", "--notify", "--no-notify")
    arguments += o.flag("q", "--retry-queues") + o.flag("r", "--retries")
    arguments += o.flag("i", "--broker-id") + o.flag("w", "--broker-id-when-slow")
    return arguments + o.flag("p", "--retry-policy") + attributes(o, "attributes")


def delete_group(o: GivenOptions) -> list[str]:
    keep = [] if o.is_true("r") else ["--keep-offsets"]
    return ["group", "delete", o["g"], *o.where(), *keep, "--yes"]


def apply_file(noun: str) -> Build:
    return lambda o: [noun, "apply", o["f"], *o.where(), "--yes"]


def list_topics(o: GivenOptions) -> list[str]:
    return ["topic", "list", "--all", *(["--groups"] if o.get("c") else [])]


def topic_stats(o: GivenOptions) -> list[str]:
    topic = o.get("t")
    return ["topic", "stats", *([topic] if topic else []), *(["--active"] if o.get("a") else [])]


def order(o: GivenOptions) -> list[str]:
    method, topic = o["m"], o["t"]
    if method == "put":
        return ["namesrv", "kv", "put", ORDER_NAMESPACE, topic, o["v"]]
    o.ignore("v")  # Only needed to put.
    if method == "delete":
        return ["namesrv", "kv", "delete", ORDER_NAMESPACE, topic, "--yes"]
    return ["namesrv", "kv", "get", ORDER_NAMESPACE, topic]


def progress(o: GivenOptions) -> list[str]:
    group = o.get("g")
    o.ignore("s")  # The member that holds a queue is always shown.
    if group is None:
        o.ignore("t")  # As with the original: the list of groups is of all topics.
        return ["group", "list", *o.flag("c", "--cluster")]
    topic = o.flag("t", "--topic")
    if not topic:
        o.ignore("c")  # As with the original: used only with a topic, to find its brokers.
    return ["group", "show", group, *topic, *(o.flag("c", "--through") if topic else [])]


def members(o: GivenOptions) -> list[str]:
    arguments = ["group", "members", o["g"], *o.flag("i", "--client"), *o.flag("b", "--broker")]
    return arguments + (["--stacks"] if o.get("s") else [])


# -- offsets ---------------------------------------------------------------------------------------


def reset(o: GivenOptions) -> list[str]:
    arguments = ["offset", "reset", o["g"], o["t"], "--yes", *o.flag("b", "--broker")]
    arguments += o.flag("q", "--queue")
    goal, when = o.get("o"), o["s"]
    if goal is not None:
        arguments += ["--to-offset", goal]
    else:
        arguments += ["--to", {"-1": "latest", "-2": "earliest"}.get(when, when)]
    # In 4.9 -c is a switch: the consumers are C++ clients. In 5.x it finds the brokers.
    cluster = o.get("c")
    is_for_cpp = bool(o.get("cplus")) or cluster == "true"
    arguments += ["--cpp"] if is_for_cpp else o.flag("c", "--through")
    return arguments if o.is_true("f", "true") else [*arguments, "--only-back"]


def skip(o: GivenOptions) -> list[str]:
    through = o.flag("c", "--through")
    if o.is_true("f", "true"):
        return ["offset", "skip", o["g"], o["t"], "--yes", *through]
    return ["offset", "reset", o["g"], o["t"], "--yes", "--to", "latest", "--only-back", *through]


# -- messages --------------------------------------------------------------------------------------


def by_id(o: GivenOptions) -> list[str]:
    found = [*o.flag("t", "--topic"), *o.flag("c", "--through")]
    group, client = o.get("g"), o.get("d")
    ids = [each.strip() for each in o["i"].split(",") if each.strip()]
    if group is not None and client is not None:
        o.ignore("s", "u", "f")  # As with the original, pushing takes precedence.
        return ["message", "push", *ids, "--group", group, "--client", client, *found]
    if o.is_true("s"):
        # A unit is part of a client id, which is not visible for a client that only sends.
        o.ignore("u", "f")
        return ["message", "resend", *ids, *found]
    o.ignore("u")
    return ["message", "show", *ids, *found, *o.flag("f", "--charset")]


def by_unique_key(o: GivenOptions) -> list[str]:
    group, client = o.get("g"), o.get("d")
    if group is not None and client is not None:
        o.ignore("a", "s", "e")
        arguments = ["message", "push", o["i"], "--group", group, "--client", client]
        return [*arguments, "--topic", o["t"], *o.flag("c", "--through")]
    o.ignore("a")  # All messages with the key are shown.
    arguments = ["message", "query", o["t"], "--unique-key", o["i"]]
    return arguments + o.flag("s", "--from") + o.flag("e", "--to") + o.flag("c", "--through")


def by_key(o: GivenOptions) -> list[str]:
    arguments = ["message", "query", o["t"], "--key", o["k"]]
    arguments += o.flag("b", "--from") + o.flag("e", "--to") + o.flag("m", "--limit")
    arguments += o.flag("p", "--key-type") + o.flag("l", "--last-key")
    return arguments + o.flag("c", "--through")


def by_offset(o: GivenOptions) -> list[str]:
    arguments = ["message", "at", o["t"], "--broker", o["b"], "--queue", o["i"], "--offset", o["o"]]
    return arguments + o.flag("f", "--charset") + o.flag("r", "--through")


def trace(o: GivenOptions) -> list[str]:
    arguments = ["message", "trace", o["i"], *o.flag("t", "--trace-topic")]
    return arguments + o.flag("b", "--from") + o.flag("e", "--to") + o.flag("c", "--limit")


def print_messages(o: GivenOptions) -> list[str]:
    arguments = ["message", "query", o["t"], "--from", o.get("b") or "earliest", "--limit", _MANY]
    arguments += o.flag("e", "--to") + o.flag("s", "--tag") + o.flag("c", "--charset")
    return arguments + o.switch("d", "--body", "--no-body")


def print_topic(o: GivenOptions) -> list[str]:
    return [*print_messages(o), *o.flag("l", "--through")]


def print_queue(o: GivenOptions) -> list[str]:
    arguments = [*print_messages(o), "--broker", o["a"], "--queue", o["i"]]
    arguments += o.switch("f", "--count-tags")
    # With counts the messages are not listed, unless requested.
    is_listed = o.is_true("p", "false" if "--count-tags" in arguments else "true")
    return arguments if is_listed else [*arguments, "--no-list"]


def consume(o: GivenOptions) -> list[str]:
    arguments = [
        "message",
        "query",
        o["t"],
        "--from",
        o.get("s") or "earliest",
        *o.flag("e", "--to"),
    ]
    arguments += o.flag("b", "--broker") + o.flag("i", "--queue") + o.flag("o", "--offset")
    return [*arguments, *o.flag("g", "--group"), "--limit", o.get("c") or "128"]


def send(o: GivenOptions) -> list[str]:
    arguments = ["message", "send", o["t"], o["p"], *o.flag("k", "--key"), *o.flag("c", "--tag")]
    return arguments + o.flag("b", "--broker") + o.flag("i", "--queue") + o.switch("m", "--trace")


def entries(o: GivenOptions) -> list[str]:
    arguments = ["message", "entries", o["t"], *o.flag("b", "--broker"), "--queue", o["q"]]
    return [*arguments, "--offset", o["i"], *o.flag("c", "--count"), *o.flag("g", "--group")]


# -- brokers, clusters, access ---------------------------------------------------------------------


def clusters(o: GivenOptions) -> list[str]:
    arguments = ["cluster", "top", "--once"] if o.get("m") else ["cluster", "show"]
    arguments += o.flag("c", "--cluster")
    every = o.get("i")
    if every is None:
        return arguments
    arguments = [switch_argument for switch_argument in arguments if switch_argument != "--once"]
    return [*arguments, "--every", every, *([] if arguments[1] == "top" else ["--watch"])]


def ha(o: GivenOptions) -> list[str]:
    every = o.get("i")
    watch = [] if every is None else ["--every", every, "--watch"]
    return ["broker", "ha", o.broker_or_cluster(), *watch]


def latency(o: GivenOptions) -> list[str]:
    arguments = ["cluster", "latency", *o.flag("a", "--count"), *o.flag("s", "--size")]
    arguments += [*o.flag("c", "--cluster"), "--every", o.get("i") or "10"]
    lines = o.switch("p", "--lines")
    if not lines:
        o.ignore("m")  # As with the original: only a line for a log names the room.
    return [*arguments, *lines, *(o.flag("m", "--room") if lines else [])]


def lag(o: GivenOptions) -> list[str]:
    arguments = ["broker", "lag", o["b"], *o.flag("l", "--min-lag"), *o.switch("o", "--orderly")]
    wait = o.get("t")
    if wait is None:
        return arguments
    # Our option rejects what is not a number.
    return [*arguments, "--timeout", f"{int(wait) / 1000:g}" if wait.isdecimal() else wait]


def change_broker(o: GivenOptions) -> list[str]:
    arguments = ["broker", "config", o.broker_or_cluster(), "--set", f"{o['k']}={o['v']}", "--yes"]
    # As with the original any value counts as true.
    is_for_slaves = o.get("a") is not None
    return arguments if is_for_slaves or o.get("b") else [*arguments, "--masters"]


def put_account(o: GivenOptions) -> list[str]:
    arguments = ["acl", "put", o["a"], *o.flag("s", "--secret"), *o.flag("w", "--white-address")]
    arguments += o.flag("i", "--default-topic") + o.flag("u", "--default-group")
    arguments += o.switch("m", "--admin", "--no-admin")
    for name, ours in (("t", "--topic"), ("g", "--group")):
        for pair in (o.get(name) or "").split(","):
            arguments += [ours, pair.strip()] if pair.strip() else []
    return [*arguments, *o.where(), "--yes"]


def clean(what: str) -> Build:
    return lambda o: ["broker", "clean", what, *o.where(), "--yes"]


def export_metadata(o: GivenOptions) -> list[str]:
    arguments = ["cluster", "export", "metadata"]
    # As with the original, a broker takes precedence over a cluster, topics over groups.
    o.ignore("c")
    arguments += o.flag("b", "--broker") or ["--cluster", o["c"]]
    arguments += o.flag("f", "--folder") + (["--special"] if o.get("s") else [])
    topics, groups = o.get("t"), o.get("g")
    only = "topics" if topics else "groups" if groups else None
    return [*arguments, "--only", only] if only else arguments


def export(what: str) -> Build:
    return lambda o: ["cluster", "export", what, "--cluster", o["c"], *o.flag("f", "--folder")]


def bench(topic: str, count: str, size: str) -> Build:
    return lambda o: [
        "bench", "send", o[topic], *o.flag(count, "--count"), *o.flag(size, "--size"),
        "--concurrency", "1",
    ]  # fmt: skip
