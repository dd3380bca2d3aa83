"""TLS settings: contexts, and error messages."""

import ssl
from pathlib import Path

import pytest
import trustme

from tianzhou.errors import ConfigError
from tianzhou.remoting.tls.contexts import ClientCertificates, Tls, TlsMode


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a certificate and its key."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(path))
    return path


def test_modes_have_rocketmqs_names() -> None:
    assert [TlsMode(name) for name in ("disabled", "permissive", "enforcing")] == list(TlsMode)
    asked = [ClientCertificates(name) for name in ("none", "optional", "require")]
    assert asked == list(ClientCertificates)


def test_off_needs_nothing() -> None:
    assert Tls(mode=TlsMode.OFF).server_context() is None


def test_key_and_certificate_may_share_a_file(certificate: Path) -> None:
    assert Tls(certificate=certificate).server_context() is not None


def test_a_server_needs_a_certificate() -> None:
    with pytest.raises(ConfigError, match="TLS mode enforcing needs a server certificate"):
        Tls().server_context()


def test_a_missing_file_is_named(tmp_path: Path, certificate: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.pem"):
        Tls(certificate=tmp_path / "absent.pem").server_context()
    with pytest.raises(ConfigError, match=r"ca\.pem"):
        Tls(trusted=tmp_path / "ca.pem").client_context()
    with pytest.raises(ConfigError, match="name the authorities"):
        Tls(
            certificate=certificate, client_certificates=ClientCertificates.REQUIRED
        ).server_context()


def test_an_encrypted_key_needs_its_password(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    issued = trustme.CA().issue_cert("localhost")
    plain = load_pem_private_key(issued.private_key_pem.bytes(), None)
    secret = BestAvailableEncryption(b"secret")
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    key.write_bytes(plain.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret))
    chain.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    assert Tls(certificate=chain, key=key, key_password="secret").server_context()  # noqa: S106 - a test's
    for wrong in (None, "wrong"):
        with pytest.raises(ConfigError, match=r"key\.pem"):
            Tls(certificate=chain, key=key, key_password=wrong).server_context()


def test_a_client_verifies_by_default() -> None:
    careful, careless = Tls().client_context(), Tls(verify=False).client_context()
    assert (careful.verify_mode, careful.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (careless.verify_mode, careless.check_hostname) == (ssl.CERT_NONE, False)
    unnamed = Tls(check_name=False).client_context()
    assert (unnamed.verify_mode, unnamed.check_hostname) == (ssl.CERT_REQUIRED, False)
