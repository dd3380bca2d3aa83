"""Changes of the console's clusters: add one, remove one that was added."""

import msgspec

from tianzhou.console import added_clusters
from tianzhou.console.settings import ClusterSettings, check_cluster_name
from tianzhou.console.text import Text
from tianzhou.console.web import figures
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.refusals import Conflict, Invalid, NotFound
from tianzhou.console.web.route import Done, Plan, PlanRow, Prepared
from tianzhou.errors import AddressError, ConfigError
from tianzhou.remoting.address import parse_addresses

_ADDRESSES_MAX = 1000


class AddCluster(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster without an account; those with one are contexts of the command line."""

    name: str
    namesrv: str
    zone: str = ""


class RemoveCluster(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster that was added here."""

    name: str


async def add_cluster(ask: Ask, given: AddCluster) -> Prepared:
    """Show one more cluster."""
    name, namesrv = given.name.strip(), given.namesrv.strip()
    try:
        check_cluster_name(name)
    except ConfigError as e:
        raise Invalid(Text("{why}", why=str(e)), "name") from e
    try:
        addresses = parse_addresses(namesrv)
    except AddressError as e:
        raise Invalid(Text("{why}", why=str(e)), "namesrv") from e
    if not addresses or len(namesrv) > _ADDRESSES_MAX:
        raise Invalid(Text("Write the nameservers as HOST:PORT;HOST:PORT."), "namesrv")
    if given.zone and not figures.is_zone(given.zone):
        raise Invalid(Text("There is no time zone {name}.", name=given.zone), "zone")
    exists = Conflict(Text("There is a cluster {name} already.", name=name))
    if name in ask.console.clusters:
        raise exists
    cluster = ClusterSettings(name=name, namesrv=namesrv, zone=given.zone)
    plan = Plan(
        title=Text("Add the cluster {name}", name=name),
        rows=(PlanRow(subject=name, what=Text("Nameservers"), after=namesrv),),
        button=Text("Add cluster"),
    )

    async def execute() -> Done:
        now_ms = ask.now_ms
        if not await ask.database.write(lambda each: added_clusters.add(each, cluster, now_ms)):
            raise exists
        await _reload(ask)
        return Done(
            subject=name, notice=Text("The cluster {name} was added.", name=name), cluster=name,
            after=given,
        )  # fmt: skip

    return Prepared(plan, execute)


async def remove_cluster(ask: Ask, given: RemoveCluster) -> Prepared:
    """Show a cluster no more; nothing changes in the cluster."""
    name = given.name
    if any(each.name == name for each in ask.console.settings.clusters):
        raise Conflict(Text("The cluster {name} is from the command line.", name=name))
    added = await ask.database.read(added_clusters.listed)
    found = next((each for each in added if each.name == name), None)
    if found is None:
        raise NotFound(Text("There is no cluster {name}.", name=name))
    plan = Plan(
        title=Text("Remove the cluster {name}", name=name),
        rows=(PlanRow(subject=name, what=Text("Nameservers"), before=found.namesrv),),
        warnings=(Text("The cluster itself is not changed; its history in the console stays."),),
        button=Text("Remove cluster"),
        is_dangerous=True,
    )

    async def execute() -> Done:
        await ask.database.write(lambda each: added_clusters.remove(each, name))
        await _reload(ask)
        notice = Text("The cluster {name} was removed.", name=name)
        before = {"name": name, "namesrv": found.namesrv, "zone": found.zone}
        return Done(subject=name, notice=notice, cluster=name, before=before)

    return Prepared(plan, execute)


async def _reload(ask: Ask) -> None:
    if ask.console.reload_clusters is not None:
        await ask.console.reload_clusters()
