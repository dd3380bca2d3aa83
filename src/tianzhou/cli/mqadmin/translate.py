"""Our words for the sub commands of mqadmin whose options need more than a flag each.

Each function takes what it needs from `Given`, which remembers what was taken, so that an option
that nobody took can be refused.
"""

from collections.abc import Callable

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
_MANY = "1000000"


class Given:
    """The options of one call; what was looked at counts as met."""

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

    def met(self, *names: str) -> list[str]:
        """No words: whatever these say, it is so here in any case, or means nothing here.

        Whoever writes this in the table says there why.
        """
        self.used.update(names)
        return []

    def flag(self, name: str, ours: str) -> list[str]:
        """Our option with the value of theirs, if that is given."""
        value = self.get(name)
        return [] if value is None else [ours, value]

    def switch(self, name: str, on: str, off: str | None = None) -> list[str]:
        """Our switch for "true" or "false", if that is given."""
        value = self.get(name)
        if value is None:
            return []
        word = on if value.lower() == "true" else off
        return [word] if word else []

    def where(self, broker: str = "b", cluster: str = "c") -> list[str]:
        """--broker or --cluster; as with the original a broker counts before a cluster."""
        self.met(cluster)
        return self.flag(broker, "--broker") or self.flag(cluster, "--cluster")

    def broker_or_cluster(self) -> str:
        """The word that means both for us. Raises KeyError if neither is given."""
        self.met("c")
        return self.get("b") or self["c"]


Build = Callable[[Given], list[str]]


# -- topics and groups -----------------------------------------------------------------------------


def attributes(o: Given, name: str) -> list[str]:
    """Changes of attributes, "+a=b,-c"."""
    words: list[str] = []
    for change in (o.get(name) or "").split(","):
        text = change.strip()
        if text.startswith("-"):
            words += ["--remove-attribute", text[1:]]
        elif text:
            words += ["--attribute", text.removeprefix("+")]
    return words


def update_topic(o: Given) -> list[str]:
    # As with the original: what is not named gets its default, also where the topic exists.
    words = ["topic", "update", o["t"], "--or-create", "--from-defaults", *o.where()]
    words += o.flag("r", "--read-queues") + o.flag("w", "--write-queues") + o.flag("p", "--perm")
    words += o.switch("o", "--ordered", "--not-ordered")
    words += o.switch("u", "--unit", "--no-unit")
    return words + o.switch("s", "--unit-sub", "--no-unit-sub") + attributes(o, "a")


def update_group(o: Given) -> list[str]:
    words = ["group", "update", o["g"], "--or-create", "--from-defaults", *o.where()]
    words += o.switch("s", "--consume", "--no-consume")
    # These two the tool sets itself, and not to what a group has otherwise.
    words += o.switch("m", "--from-min", "--not-from-min") or ["--not-from-min"]
    words += o.switch("d", "--broadcast", "--no-broadcast") or ["--no-broadcast"]
    words += o.switch("o", "--orderly", "--not-orderly")
    words += o.switch("a", "--notify", "--no-notify")
    words += o.flag("q", "--retry-queues") + o.flag("r", "--retries")
    words += o.flag("i", "--broker-id") + o.flag("w", "--broker-id-when-slow")
    return words + o.flag("p", "--retry-policy") + attributes(o, "attributes")


def delete_group(o: Given) -> list[str]:
    keep = [] if o.is_true("r") else ["--keep-offsets"]
    return ["group", "delete", o["g"], *o.where(), *keep, "--yes"]


def apply_file(noun: str) -> Build:
    return lambda o: [noun, "apply", o["f"], *o.where(), "--yes"]


def list_topics(o: Given) -> list[str]:
    return ["topic", "list", "--all", *(["--groups"] if o.get("c") else [])]


def topic_stats(o: Given) -> list[str]:
    topic = o.get("t")
    return ["topic", "stats", *([topic] if topic else []), *(["--active"] if o.get("a") else [])]


def order(o: Given) -> list[str]:
    method, topic = o["m"], o["t"]
    if method == "put":
        return ["namesrv", "kv", "put", ORDER_NAMESPACE, topic, o["v"]]
    o.met("v")  # Only putting needs it.
    if method == "delete":
        return ["namesrv", "kv", "delete", ORDER_NAMESPACE, topic, "--yes"]
    return ["namesrv", "kv", "get", ORDER_NAMESPACE, topic]


def progress(o: Given) -> list[str]:
    group = o.get("g")
    o.met("s")  # Who holds a queue is always shown.
    if group is None:
        o.met("t")  # As with the original: a list of groups is of all topics.
        return ["group", "list", *o.flag("c", "--cluster")]
    topic = o.flag("t", "--topic")
    if not topic:
        o.met("c")  # As with the original: it finds the brokers of a topic.
    return ["group", "show", group, *topic, *(o.flag("c", "--through") if topic else [])]


def members(o: Given) -> list[str]:
    words = ["group", "members", o["g"], *o.flag("i", "--client"), *o.flag("b", "--broker")]
    return words + (["--stacks"] if o.get("s") else [])


# -- offsets ---------------------------------------------------------------------------------------


def reset(o: Given) -> list[str]:
    words = ["offset", "reset", o["g"], o["t"], "--yes", *o.flag("b", "--broker")]
    words += o.flag("q", "--queue")
    goal, when = o.get("o"), o["s"]
    if goal is not None:
        words += ["--to-offset", goal]
    else:
        words += ["--to", {"-1": "latest", "-2": "earliest"}.get(when, when)]
    # In 4.9 -c is a switch: the consumers are C++ clients. In 5.x it finds the brokers.
    cluster = o.get("c")
    is_for_cpp = bool(o.get("cplus")) or cluster == "true"
    words += ["--cpp"] if is_for_cpp else o.flag("c", "--through")
    return words if o.is_true("f", "true") else [*words, "--only-back"]


def skip(o: Given) -> list[str]:
    through = o.flag("c", "--through")
    if o.is_true("f", "true"):
        return ["offset", "skip", o["g"], o["t"], "--yes", *through]
    return ["offset", "reset", o["g"], o["t"], "--yes", "--to", "latest", "--only-back", *through]


# -- messages --------------------------------------------------------------------------------------


def by_id(o: Given) -> list[str]:
    found = [*o.flag("t", "--topic"), *o.flag("c", "--through")]
    group, client = o.get("g"), o.get("d")
    ids = [each.strip() for each in o["i"].split(",") if each.strip()]
    if group is not None and client is not None:
        o.met("s", "u", "f")  # As with the original, pushing counts before all else.
        return ["message", "push", *ids, "--group", group, "--client", client, *found]
    if o.is_true("s"):
        # A unit is part of a client's id, which nobody sees of a client that only sends.
        o.met("u", "f")
        return ["message", "resend", *ids, *found]
    o.met("u")
    return ["message", "show", *ids, *found, *o.flag("f", "--charset")]


def by_unique_key(o: Given) -> list[str]:
    group, client = o.get("g"), o.get("d")
    if group is not None and client is not None:
        o.met("a", "s", "e")
        words = ["message", "push", o["i"], "--group", group, "--client", client]
        return [*words, "--topic", o["t"], *o.flag("c", "--through")]
    o.met("a")  # All messages with the key are shown.
    words = ["message", "query", o["t"], "--unique-key", o["i"]]
    return words + o.flag("s", "--from") + o.flag("e", "--to") + o.flag("c", "--through")


def by_key(o: Given) -> list[str]:
    words = ["message", "query", o["t"], "--key", o["k"]]
    words += o.flag("b", "--from") + o.flag("e", "--to") + o.flag("m", "--limit")
    words += o.flag("p", "--key-type") + o.flag("l", "--last-key")
    return words + o.flag("c", "--through")


def by_offset(o: Given) -> list[str]:
    words = ["message", "at", o["t"], "--broker", o["b"], "--queue", o["i"], "--offset", o["o"]]
    return words + o.flag("f", "--charset") + o.flag("r", "--through")


def trace(o: Given) -> list[str]:
    words = ["message", "trace", o["i"], *o.flag("t", "--trace-topic")]
    return words + o.flag("b", "--from") + o.flag("e", "--to") + o.flag("c", "--limit")


def print_messages(o: Given) -> list[str]:
    words = ["message", "query", o["t"], "--from", o.get("b") or "earliest", "--limit", _MANY]
    words += o.flag("e", "--to") + o.flag("s", "--tag") + o.flag("c", "--charset")
    return words + o.switch("d", "--body", "--no-body")


def print_topic(o: Given) -> list[str]:
    return [*print_messages(o), *o.flag("l", "--through")]


def print_queue(o: Given) -> list[str]:
    words = [*print_messages(o), "--broker", o["a"], "--queue", o["i"]]
    words += o.switch("f", "--count-tags")
    # Who counts does not want to see the messages as well, unless that is said.
    is_listed = o.is_true("p", "false" if "--count-tags" in words else "true")
    return words if is_listed else [*words, "--no-list"]


def consume(o: Given) -> list[str]:
    words = ["message", "query", o["t"], "--from", o.get("s") or "earliest", *o.flag("e", "--to")]
    words += o.flag("b", "--broker") + o.flag("i", "--queue") + o.flag("o", "--offset")
    return [*words, *o.flag("g", "--group"), "--limit", o.get("c") or "128"]


def send(o: Given) -> list[str]:
    words = ["message", "send", o["t"], o["p"], *o.flag("k", "--key"), *o.flag("c", "--tag")]
    return words + o.flag("b", "--broker") + o.flag("i", "--queue") + o.switch("m", "--trace")


def entries(o: Given) -> list[str]:
    words = ["message", "entries", o["t"], *o.flag("b", "--broker"), "--queue", o["q"]]
    return [*words, "--offset", o["i"], *o.flag("c", "--count"), *o.flag("g", "--group")]


# -- brokers, clusters, access ---------------------------------------------------------------------


def clusters(o: Given) -> list[str]:
    words = ["cluster", "top", "--once"] if o.get("m") else ["cluster", "show"]
    words += o.flag("c", "--cluster")
    every = o.get("i")
    if every is None:
        return words
    words = [word for word in words if word != "--once"]
    return [*words, "--every", every, *([] if words[1] == "top" else ["--watch"])]


def ha(o: Given) -> list[str]:
    every = o.get("i")
    watch = [] if every is None else ["--every", every, "--watch"]
    return ["broker", "ha", o.broker_or_cluster(), *watch]


def latency(o: Given) -> list[str]:
    words = ["cluster", "latency", *o.flag("a", "--count"), *o.flag("s", "--size")]
    words += [*o.flag("c", "--cluster"), "--every", o.get("i") or "10"]
    lines = o.switch("p", "--lines")
    if not lines:
        o.met("m")  # As with the original: only a line for a log names the room.
    return [*words, *lines, *(o.flag("m", "--room") if lines else [])]


def lag(o: Given) -> list[str]:
    words = ["broker", "lag", o["b"], *o.flag("l", "--min-lag"), *o.switch("o", "--orderly")]
    wait = o.get("t")
    if wait is None:
        return words
    # What is no number is for our own option to refuse.
    return [*words, "--timeout", f"{int(wait) / 1000:g}" if wait.isdecimal() else wait]


def change_broker(o: Given) -> list[str]:
    words = ["broker", "config", o.broker_or_cluster(), "--set", f"{o['k']}={o['v']}", "--yes"]
    # As with the original any value will do: that it is given counts.
    is_for_slaves = o.get("a") is not None
    return words if is_for_slaves or o.get("b") else [*words, "--masters"]


def put_account(o: Given) -> list[str]:
    words = ["acl", "put", o["a"], *o.flag("s", "--secret"), *o.flag("w", "--white-address")]
    words += o.flag("i", "--default-topic") + o.flag("u", "--default-group")
    words += o.switch("m", "--admin", "--no-admin")
    for name, ours in (("t", "--topic"), ("g", "--group")):
        for pair in (o.get(name) or "").split(","):
            words += [ours, pair.strip()] if pair.strip() else []
    return [*words, *o.where(), "--yes"]


def clean(what: str) -> Build:
    return lambda o: ["broker", "clean", what, *o.where(), "--yes"]


def export_metadata(o: Given) -> list[str]:
    words = ["cluster", "export", "metadata"]
    # As with the original, a broker counts before a cluster, and topics before groups.
    o.met("c")
    words += o.flag("b", "--broker") or ["--cluster", o["c"]]
    words += o.flag("f", "--folder") + (["--special"] if o.get("s") else [])
    topics, groups = o.get("t"), o.get("g")
    only = "topics" if topics else "groups" if groups else None
    return [*words, "--only", only] if only else words


def export(what: str) -> Build:
    return lambda o: ["cluster", "export", what, "--cluster", o["c"], *o.flag("f", "--folder")]


def bench(topic: str, count: str, size: str) -> Build:
    return lambda o: [
        "bench", "send", o[topic], *o.flag(count, "--count"), *o.flag(size, "--size"),
        "--concurrency", "1",
    ]  # fmt: skip
