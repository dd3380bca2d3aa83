"""The settings of the console, and its clusters; for administrators."""

import platform

import msgspec

import tianzhou
from tianzhou.console import added_clusters
from tianzhou.console.accounts import audit, sessions
from tianzhou.console.web.ask import Ask


class ClusterSetting(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster, without its secret."""

    name: str
    namesrv: str
    zone: str
    access_key: str
    is_tls: bool
    is_added: bool
    """Added on this page; the others are from the command line."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How the console was started."""

    version: str
    python: str
    started_ms: int
    listen: str
    root_path: str
    host_names: tuple[str, ...]
    trusted_proxies: tuple[str, ...]
    is_https: bool
    is_loopback: bool
    database: str
    database_kind: str
    oidc_issuer: str
    session_idle_ms: int
    session_life_ms: int
    audit_kept_ms: int
    clusters: tuple[ClusterSetting, ...]


async def settings(ask: Ask) -> Settings:
    """How the console was started, and its clusters."""
    console, chosen = ask.console, ask.console.settings
    added = await ask.database.read(added_clusters.listed)
    fixed = {each.name for each in chosen.clusters}
    listed = [*chosen.clusters, *(each for each in added if each.name not in fixed)]
    return Settings(
        version=tianzhou.__version__,
        python=platform.python_version(),
        started_ms=console.started_ms,
        listen=f"{chosen.listen_host}:{chosen.listen_port}",
        root_path=chosen.root_path,
        host_names=chosen.host_names,
        trusted_proxies=chosen.trusted_proxies,
        is_https=chosen.is_https,
        is_loopback=chosen.is_loopback,
        database=console.database.shown,
        database_kind=console.database.engine.dialect.name,
        oidc_issuer=chosen.oidc.issuer if chosen.oidc is not None else "",
        session_idle_ms=sessions.IDLE_MS,
        session_life_ms=sessions.LIFE_MS,
        audit_kept_ms=audit.KEPT_MS,
        clusters=tuple(
            ClusterSetting(
                name=each.name, namesrv=each.namesrv, zone=each.zone,
                access_key=each.access_key or "", is_tls=each.tls,
                is_added=each.name not in fixed,
            )
            for each in listed
        ),
    )  # fmt: skip
