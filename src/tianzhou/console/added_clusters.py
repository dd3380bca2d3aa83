"""Clusters that administrators have added on the settings page; rows of `console_clusters`."""

from sqlalchemy import Connection, delete, select

from tianzhou.console.settings import ClusterSettings
from tianzhou.console.tables import clusters
from tianzhou.monitor.database import insert_new


def listed(connection: Connection) -> list[ClusterSettings]:
    """All of them, by name."""
    rows = connection.execute(select(clusters).order_by(clusters.c.name))
    return [ClusterSettings(name=row.name, namesrv=row.namesrv, zone=row.zone) for row in rows]


def add(connection: Connection, cluster: ClusterSettings, now_ms: int) -> bool:
    """Add one; False if its name exists."""
    row = {
        "name": cluster.name, "namesrv": cluster.namesrv, "zone": cluster.zone,
        "added_ms": now_ms,
    }  # fmt: skip
    return insert_new(connection, clusters, row)


def remove(connection: Connection, name: str) -> bool:
    """Remove one; False if there is none. Its history stays."""
    return connection.execute(delete(clusters).where(clusters.c.name == name)).rowcount == 1
