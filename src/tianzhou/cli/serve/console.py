"""`tianzhou console`: the web console. Its accounts: `console_accounts.py`."""

import argparse
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tianzhou.cli.serve import arguments as server
from tianzhou.cli.serve import foreground
from tianzhou.cli.shared.context_file import Context, contexts_path, find_context, load_contexts
from tianzhou.cli.shared.terminal import FAILED, USAGE_ERROR, print_error
from tianzhou.config.log_settings import LogLevel, LogSettings
from tianzhou.config.settings import Given, load
from tianzhou.errors import ConfigError, TianzhouError

if TYPE_CHECKING:
    from tianzhou.console.server import ConsoleServer
    from tianzhou.console.settings import ClusterSettings, ConsoleSettings, OidcSettings

COMMAND = "tianzhou console"
PASSWORD = "TIANZHOU_CONSOLE_PASSWORD"  # noqa: S105 - the name of a variable
OIDC_SECRET = "TIANZHOU_CONSOLE_OIDC_SECRET"  # noqa: S105 - the name of a variable
MISSING = "the console is not installed: pip install 'tianzhou[console]'"
_DEFAULT_NAME = "default"

_DESCRIPTION = """\
Start the web console. Ctrl-C or SIGTERM stops it.

At the first start it prints a link that works once, and makes the first administrator.
"""
_EPILOG = """\
examples:
  tianzhou console --namesrv 127.0.0.1:9876
  tianzhou console --namesrv prod=ns1:9876;ns2:9876 --namesrv test=10.0.0.5:9876
  tianzhou console --context prod --listen 0.0.0.0:8443 --tls-cert c.pem --tls-key k.pem
accounts:
  tianzhou console user add LOGIN [--admin] | user password LOGIN | user disable LOGIN
  tianzhou console token revoke ID
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        given = [Given("logLevel", LogLevel.INFO, COMMAND), *parser.settings(options)]
        if not server.start_log(COMMAND, load(LogSettings, given).config):
            return USAGE_ERROR
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        settings = settings_of(options)
        from tianzhou.console.server import ConsoleServer

        mail = options.admin_mail or ""
        program = ConsoleServer(
            settings, admin_mail=mail, admin_password=os.environ.get(PASSWORD, "")
        )
    except ImportError as e:
        print_error(COMMAND, f"{MISSING} ({e})")
        return FAILED
    except TianzhouError as e:
        print_error(COMMAND, e)
        return USAGE_ERROR
    return foreground.run("console", lambda: program, lambda it, _: started_text(it))


def started_text(program: "ConsoleServer") -> str:
    """The line that says where it is, and how to begin."""
    if program.setup_url:
        return f"console: open {program.setup_url} (works once, for 30 minutes)"
    return f"console: {program.url}"


def settings_of(options: argparse.Namespace) -> "ConsoleSettings":
    """The settings of a command line. Raises ConfigError, ImportError."""
    from tianzhou.console.settings import DEFAULT_PORT, ConsoleSettings

    host, port = _host_and_port(options.listen, DEFAULT_PORT)
    return ConsoleSettings(
        listen_host=host,
        listen_port=port,
        clusters=tuple(_clusters(options.namesrv, options.context, os.environ.get("NAMESRV_ADDR"))),
        data=options.data,
        database=options.database or "",
        root_path=options.root_path.rstrip("/"),
        host_names=tuple(options.host_name),
        trusted_proxies=tuple(
            each.strip() for text in options.trusted_proxies for each in text.split(",") if each
        ),
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        is_https_outside=options.https,
        oidc=_oidc(options),
    )


def _host_and_port(text: str, default_port: int) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text, str(default_port)
    if not (port.isdigit() and int(port) < 65536) or not host:
        raise ConfigError(f"--listen {text}: write ADDRESS:PORT, such as 127.0.0.1:{default_port}")
    return host.strip("[]"), int(port)


def _clusters(
    addresses: Sequence[str], contexts: Sequence[str], variable: str | None
) -> list["ClusterSettings"]:
    from tianzhou.console.settings import ClusterSettings

    if not addresses and not contexts and variable:
        addresses = [variable]
    found: dict[str, ClusterSettings] = {}
    for text in addresses:
        name, equals, namesrv = text.partition("=")
        if not equals:
            name, namesrv = _DEFAULT_NAME, text
        _add(found, name, Context(namesrv=namesrv))
    known = load_contexts(contexts_path()) if contexts else None
    for name in contexts:
        if known is not None:
            _add(found, name, find_context(known, name))
    return list(found.values())


def _add(found: dict[str, "ClusterSettings"], name: str, context: Context) -> None:
    from tianzhou.console.settings import ClusterSettings, check_cluster_name

    check_cluster_name(name)
    if name in found:
        raise ConfigError(f"two clusters are called {name}: write --namesrv NAME=ADDRESS")
    found[name] = ClusterSettings(
        name=name, namesrv=context.namesrv, access_key=context.access_key,
        secret_key=context.secret_key, tls=context.tls, tls_ca=context.tls_ca,
        tls_cert=context.tls_cert, tls_key=context.tls_key,
    )  # fmt: skip


def _oidc(options: argparse.Namespace) -> "OidcSettings | None":
    from tianzhou.console.settings import OidcSettings

    if not options.oidc_issuer:
        return None
    if not options.oidc_client_id:
        raise ConfigError("--oidc-issuer needs --oidc-client-id")
    return OidcSettings(
        issuer=options.oidc_issuer.rstrip("/"),
        client_id=options.oidc_client_id,
        client_secret=os.environ.get(OIDC_SECRET, ""),
        name=options.oidc_name,
        role_claim=options.oidc_role_claim,
        administrators=tuple(options.oidc_admin),
        readers=tuple(options.oidc_reader),
    )


def _parser() -> server.ServerArguments:
    parser = server.ServerArguments(COMMAND, _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    add("--listen", default="127.0.0.1:8080", metavar="ADDRESS:PORT",
        help="address to listen on, 127.0.0.1:8080 by default")  # fmt: skip
    add("-n", "--namesrv", action="append", default=[], metavar="[NAME=]ADDR;ADDR",
        help="nameservers of a cluster, and its name; may be repeated")  # fmt: skip
    add("-C", "--context", action="append", default=[], metavar="NAME",
        help="a cluster of `tianzhou context`; may be repeated")  # fmt: skip
    add_database(parser)
    add("--root-path", default="", metavar="/PATH",
        help="path below which a reverse proxy shows the console")  # fmt: skip
    add("--host-name", action="append", default=[], metavar="NAME",
        help="name under which browsers address the console; may be repeated")  # fmt: skip
    add("--trusted-proxies", action="append", default=[], metavar="NETWORK,NETWORK",
        help="proxies whose X-Forwarded-For and X-Forwarded-Proto are believed")  # fmt: skip
    add("--tls-cert", type=Path, metavar="FILE", help="certificate chain, PEM")
    add("--tls-key", type=Path, metavar="FILE", help="its private key, PEM")
    add("--https", action="store_true",
        help="browsers use HTTPS although the console has no certificate: a proxy has")  # fmt: skip
    add("--admin-mail", metavar="MAIL",
        help=f"at the first start make this administrator, password in {PASSWORD}")  # fmt: skip
    add("--oidc-issuer", metavar="URL", help="OpenID provider; its secret is in " + OIDC_SECRET)
    add("--oidc-client-id", metavar="ID", help="client id of the console at the provider")
    add("--oidc-name", default="OpenID", metavar="TEXT", help="what the button for it says")
    add("--oidc-role-claim", default="groups", metavar="CLAIM",
        help="claim with the groups or roles of a person, groups by default")  # fmt: skip
    add("--oidc-admin", action="append", default=[], metavar="VALUE",
        help="value of the claim that makes an administrator; may be repeated")  # fmt: skip
    add("--oidc-reader", action="append", default=[], metavar="VALUE",
        help="value of the claim that makes a reader, * for everyone; may be repeated")  # fmt: skip
    parser.add_log_flags()
    return parser


def add_database(parser: argparse.ArgumentParser) -> None:
    """The options that say where the database is."""
    parser.add_argument("--database", metavar="URL",
        help="postgresql://... or sqlite:///FILE, by default in the data folder")  # fmt: skip
    parser.add_argument("--data", type=Path, default=Path("data/console"), metavar="FOLDER",
        help="data folder, ./data/console by default")  # fmt: skip
