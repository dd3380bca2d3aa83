"""Contexts: named clusters with their nameservers, account and TLS files.

    ~/.config/tianzhou/contexts.json
    {"current": "prod", "contexts": {"prod": {"namesrv": "ns1:9876;ns2:9876", "access_key": "..."}}}

The folder is the user's configuration folder (XDG_CONFIG_HOME) or TIANZHOU_CONFIG_DIR. The file may
hold secret keys, so only its owner can read it.

The cluster of a command is the first of these that is given: `--namesrv`, `--context`, the
environment variable NAMESRV_ADDR, the current context, localhost:9876.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tianzhou.config.files import PRIVATE, replace_file
from tianzhou.errors import ConfigError

DEFAULT_NAMESRV = "127.0.0.1:9876"


class Context(msgspec.Struct, frozen=True, omit_defaults=True):
    """One named cluster."""

    namesrv: str
    access_key: str | None = None
    secret_key: str | None = None
    tls: bool = False
    tls_ca: str | None = None
    """CA certificates that servers are verified with, a PEM file; None for the system's."""
    tls_cert: str | None = None
    """Client certificate for servers that require one, a PEM file."""
    tls_key: str | None = None
    """Its private key; None if it is in the certificate file."""

    def without_secret(self) -> "Context":
        """The same with the secret key masked."""
        return msgspec.structs.replace(self, secret_key="***" if self.secret_key else None)


class Contexts(msgspec.Struct, frozen=True, omit_defaults=True):
    """All named clusters of a user."""

    current: str | None = None
    contexts: dict[str, Context] = {}


def contexts_path(environ: Mapping[str, str] = os.environ) -> Path:
    """The path of the contexts file."""
    if given := environ.get("TIANZHOU_CONFIG_DIR"):
        return Path(given) / "contexts.json"
    base = environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "tianzhou" / "contexts.json"


def load_contexts(path: Path) -> Contexts:
    """Read the file; empty if there is none. Raises ConfigError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except (OSError, msgspec.DecodeError) as e:
        raise ConfigError(f"{path} cannot be read: {e}; repair or delete it") from e


def save_contexts(path: Path, contexts: Contexts) -> None:
    """Replace the file atomically. Raises ConfigError."""
    text = json.dumps(msgspec.to_builtins(contexts), indent=2, ensure_ascii=False)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, f"{text}\n".encode(), mode=PRIVATE)
    except OSError as e:
        raise ConfigError(f"{path} cannot be written: {e.strerror}") from e


def find_context(contexts: Contexts, name: str) -> Context:
    """A context by name. Raises ConfigError, which lists the existing ones."""
    try:
        return contexts.contexts[name]
    except KeyError:
        known = ", ".join(sorted(contexts.contexts)) or "none; add one with `tianzhou context add`"
        raise ConfigError(f"there is no context {name!r}; existing contexts: {known}") from None


def resolve(
    namesrv: str | None, name: str | None, environ: Mapping[str, str], contexts: Contexts
) -> Context:
    """The cluster of a command. Raises ConfigError."""
    if namesrv:
        return Context(namesrv=namesrv)
    if name:
        return find_context(contexts, name)
    if given := environ.get("NAMESRV_ADDR"):
        return Context(namesrv=given)
    if contexts.current:
        return find_context(contexts, contexts.current)
    return Context(namesrv=DEFAULT_NAMESRV)
