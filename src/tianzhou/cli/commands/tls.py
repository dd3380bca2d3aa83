"""`tianzhou tls`: certificates for development and tests.

tls/ca.pem       the CA that clients trust                tls/ca.key       its key
tls/server.pem   certificate and chain of the servers     tls/server.key   their key
tls/client.pem   for servers that require one             tls/client.key
"""

from pathlib import Path
from typing import Annotated

import typer

from tianzhou.cli.shared.parameters import argument, option
from tianzhou.cli.shared.terminal import FAILED, OK, print_error, print_line
from tianzhou.config.files import PRIVATE, replace_file

app = typer.Typer(name="tls", no_args_is_help=True, help="Certificates for development.")

_COMMAND = "tianzhou tls init"


@app.callback()
def group() -> None:
    """Makes typer keep `init` as a subcommand, although it is the only one."""


@app.command("init")
def init(
    hosts: Annotated[
        list[str] | None, argument("[HOST]...", "Host names and addresses of the servers.")
    ] = None,
    folder: Annotated[Path, option("--folder FOLDER", "Target folder.")] = Path("tls"),
) -> None:
    """Create a certificate authority (CA), and server and client certificates signed by it.

    An existing CA is kept, so that clients that trust it need no change; the certificates are
    replaced. Not for production: the key of the CA is not protected.
    """
    raise typer.Exit(make_certificates(folder, hosts or ["localhost", "127.0.0.1", "::1"]))


def make_certificates(folder: Path, hosts: list[str]) -> int:
    """Write the files; returns the exit code."""
    try:
        import trustme
    except ImportError:
        print_error(_COMMAND, "this needs the package trustme: pip install 'tianzhou[tls]'")
        return FAILED
    try:
        folder.mkdir(parents=True, exist_ok=True)
        ca_path, ca_key_path = folder / "ca.pem", folder / "ca.key"
        if ca_path.exists() and ca_key_path.exists():
            authority = trustme.CA.from_pem(ca_path.read_bytes(), ca_key_path.read_bytes())
        else:
            authority = trustme.CA(organization_name="Tianzhou development")
            replace_file(ca_key_path, authority.private_key_pem.bytes(), mode=PRIVATE)
            ca_path.write_bytes(authority.cert_pem.bytes())
        for name, names in (("server", hosts), ("client", ["tianzhou-client"])):
            issued = authority.issue_cert(*names, common_name=names[0])
            key = issued.private_key_pem.bytes()
            replace_file(folder / f"{name}.key", key, mode=PRIVATE)
            chain = b"".join(each.bytes() for each in issued.cert_chain_pems)
            (folder / f"{name}.pem").write_bytes(chain)
    except (OSError, ValueError) as e:
        print_error(_COMMAND, e)
        return FAILED
    print_line(_next_steps(folder.absolute(), hosts))
    return OK


def _next_steps(folder: Path, hosts: list[str]) -> str:
    return (
        f"certificates for {', '.join(hosts)} are in {folder}\n"
        "in the .properties files of nameserver and broker:\n"
        "  tlsMode=enforcing\n"
        f"  tlsServerCertPath={folder / 'server.pem'}\n"
        f"  tlsServerKeyPath={folder / 'server.key'}\n"
        f"clients trust {folder / 'ca.pem'}"
    )
