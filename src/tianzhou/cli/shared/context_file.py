"""Named clusters: where their nameservers are and which account is used there.

    ~/.config/tianzhou/contexts.json
    {"current": "prod", "contexts": {"prod": {"namesrv": "ns1:9876;ns2:9876", "access_key": "..."}}}

The folder is the user's configuration folder (XDG_CONFIG_HOME); TIANZHOU_CONFIG_DIR names another.
The file may hold secret keys, so only its owner can read it.

What a command talks to is decided by the first of these that is given: `--namesrv`, `--context`,
the environment NAMESRV_ADDR, the current context, and at last localhost:9876.
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
    """Authorities that sign the servers' certificates, a PEM file; None for the system's."""
    tls_cert: str | None = None
    """Certificate to show to servers that ask for one, a PEM file."""
    tls_key: str | None = None
    """Its private key; None if the file of the certificate has it, too."""

    def without_secret(self) -> "Context":
        """The same, fit to be shown."""
        return msgspec.structs.replace(self, secret_key="***" if self.secret_key else None)


class Contexts(msgspec.Struct, frozen=True, omit_defaults=True):
    """All named clusters of a user."""

    current: str | None = None
    contexts: dict[str, Context] = {}


def contexts_path(environ: Mapping[str, str] = os.environ) -> Path:
    """The file."""
    if given := environ.get("TIANZHOU_CONFIG_DIR"):
        return Path(given) / "contexts.json"
    base = environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "tianzhou" / "contexts.json"


def load_contexts(path: Path) -> Contexts:
    """What the file holds; nothing if there is none. Raises ConfigError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except (OSError, msgspec.DecodeError) as e:
        raise ConfigError(f"{path} cannot be read: {e}; mend it or remove it") from e


def save_contexts(path: Path, contexts: Contexts) -> None:
    """Write the file in one step. Raises ConfigError."""
    text = json.dumps(msgspec.to_builtins(contexts), indent=2, ensure_ascii=False)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, f"{text}\n".encode(), mode=PRIVATE)
    except OSError as e:
        raise ConfigError(f"{path} cannot be written: {e.strerror}") from e


def find_context(contexts: Contexts, name: str) -> Context:
    """A context by its name. Raises ConfigError, naming those that exist."""
    try:
        return contexts.contexts[name]
    except KeyError:
        known = ", ".join(sorted(contexts.contexts)) or "none; `tianzhou context add` makes one"
        raise ConfigError(f"there is no context {name!r}; known are: {known}") from None


def resolve(
    namesrv: str | None, name: str | None, environ: Mapping[str, str], contexts: Contexts
) -> Context:
    """What a command talks to. Raises ConfigError."""
    if namesrv:
        return Context(namesrv=namesrv)
    if name:
        return find_context(contexts, name)
    if given := environ.get("NAMESRV_ADDR"):
        return Context(namesrv=given)
    if contexts.current:
        return find_context(contexts, contexts.current)
    return Context(namesrv=DEFAULT_NAMESRV)
