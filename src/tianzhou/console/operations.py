"""Routes of `views/operations/`: changes of a cluster, expansion, doctor, pipelines."""

from tianzhou.console.changes import doctor as change_doctor
from tianzhou.console.changes import expansion as change_expansion
from tianzhou.console.changes import groups as change_groups
from tianzhou.console.changes import offsets as change_offsets
from tianzhou.console.changes import servers as change_servers
from tianzhou.console.changes import topics as change_topics
from tianzhou.console.views.operations import (
    doctor,
    expansion,
    groups,
    offsets,
    pipelines,
    settings,
    topics,
)
from tianzhou.console.web.route import Route, Who, change, page

ADMIN = Who.ADMINISTRATOR

OF_TOPIC = (change("update", change_topics.update), change("delete", change_topics.remove))
OF_OFFSETS = (
    change("reset", change_offsets.reset), change("skip", change_offsets.skip),
    change("clone", change_offsets.clone),
)  # fmt: skip
OF_GROUP = (
    change("update", change_groups.update), change("delete", change_groups.remove),
    change("pause", change_groups.pause), change("resume", change_groups.resume),
)  # fmt: skip
OF_BROKER = (
    change("set", change_servers.set_broker), change("wipe-write", change_servers.wipe_write),
    change("give-write", change_servers.give_write),
)  # fmt: skip
OF_NAMESERVERS = (
    change("set", change_servers.set_nameserver), change("put-pair", change_servers.put_pair),
    change("remove-pair", change_servers.remove_pair),
)  # fmt: skip
"""Changes are sent to the address of the thing, or to that of its forms."""

OPERATIONS: tuple[Route, ...] = (
    page(
        "/c/{cluster}/new-topic", topics.new_topic, "New topic",
        change("create", change_topics.create), who=ADMIN,
    ),
    page(
        "/c/{cluster}/topics/{topic}/change", topics.topic_change, "Change topic",
        *OF_TOPIC, is_live=True,
    ),
    page(
        "/c/{cluster}/new-group", groups.new_group, "New group",
        change("create", change_groups.create), who=ADMIN,
    ),
    page(
        "/c/{cluster}/groups/{group}/change", groups.group_change, "Change group",
        *OF_GROUP,
    ),
    page(
        "/c/{cluster}/groups/{group}/offsets", offsets.group_offsets, "Offsets",
        *OF_OFFSETS,
    ),
    page(
        "/c/{cluster}/brokers/{broker}/change", settings.broker_settings, "Change broker",
        *OF_BROKER,
    ),
    page(
        "/c/{cluster}/nameservers/change", settings.nameservers_change, "Change nameservers",
        *OF_NAMESERVERS,
    ),
    page(
        "/c/{cluster}/expansion", expansion.expansion, "Expansion",
        change("copy", change_expansion.copy), rows="missing",
    ),
    page(
        "/c/{cluster}/doctor", doctor.doctor, "Doctor",
        change("run", change_doctor.run, has_plan=False), is_live=True, rows="findings",
    ),
    page("/c/{cluster}/pipelines", pipelines.pipelines, "Pipelines", is_live=True, rows="runs"),
)  # fmt: skip
"""Part of the route table, `app.py`."""
