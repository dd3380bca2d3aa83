"""etcd with TLS, and with users."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from tests.support.etcd import EtcdCluster, EtcdTls, etcd_cluster
from tests.support.etcd_groups import a_replica, a_state, an_alive, authority_on, new_group

from tianzhou.errors import AuthorityError, ConfigError
from tianzhou.ha.authority.etcd import EtcdAuthority
from tianzhou.ha.authority.values import Proposal, Result
from tianzhou.remoting.tls.contexts import Tls

USER, PASSWORD, PREFIX = "broker", "broker-password", "/tianzhou/"
TOKEN_S = 2


# -- TLS -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem, etcd.pem, etcd.key, broker.pem, broker.key, stranger.pem."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name, host in (("etcd", "127.0.0.1"), ("broker", "broker.test"), ("other", "10.9.9.9")):
        certificate = authority.issue_cert(host)
        certificate.private_key_pem.write_to_path(folder / f"{name}.key")
        for blob in certificate.cert_chain_pems:
            blob.write_to_path(folder / f"{name}.pem", append=True)
    trustme.CA().cert_pem.write_to_path(folder / "stranger.pem")
    return folder


def etcd_tls(files: Path) -> EtcdTls:
    return EtcdTls(
        files / "ca.pem", files / "etcd.pem", files / "etcd.key", wants_client_certificate=True
    )


def broker_tls(files: Path, trusted: str = "ca.pem", own: str | None = "broker") -> Tls:
    return Tls(
        trusted=files / trusted,
        certificate=files / f"{own}.pem" if own else None,
        key=files / f"{own}.key" if own else None,
    )


@pytest.fixture(scope="module")
def tls_etcd(
    release: str, files: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EtcdCluster]:
    folder = tmp_path_factory.mktemp("tls")
    with etcd_cluster(folder, release=release, tls=etcd_tls(files)) as cluster:
        yield cluster


async def test_etcd_with_tls_and_client_certificates(tls_etcd: EtcdCluster, files: Path) -> None:
    assert tls_etcd.endpoints.startswith("https://")
    async with authority_on(tls_etcd, new_group(), tls=broker_tls(files)) as authority:
        joined = await authority.join(a_replica(1), None)
        await authority.keep_alive(an_alive(joined.incarnation))
        outcome = await authority.propose(Proposal(state=a_state(), revision=0))
        assert outcome.result is Result.OK
        views = authority.watch(outcome.revision - 1)
        assert (await anext(views)).state == a_state()
        await views.aclose()


async def problem_of(endpoints: str, tls: Tls) -> str:
    async with authority_on(endpoints, new_group(), tls=tls) as authority:
        with pytest.raises(AuthorityError) as error:
            await authority.read()
    return str(error.value)


async def test_what_is_wrong_with_tls_is_said(tls_etcd: EtcdCluster, files: Path) -> None:
    endpoints = tls_etcd.endpoints
    wrong_authority = await problem_of(endpoints, broker_tls(files, "stranger.pem"))
    assert "its certificate is refused" in wrong_authority
    assert "correct haEtcdCaFile" in wrong_authority
    no_certificate = await problem_of(endpoints, broker_tls(files, own=None))
    assert "set haEtcdCertFile and haEtcdKeyFile" in no_certificate
    plain = await problem_of(endpoints.replace("https", "http"), Tls())
    assert "write https:// in haEtcdEndpoints" in plain


async def test_tls_to_a_port_without_it(etcd: EtcdCluster, files: Path) -> None:
    problem = await problem_of(etcd.endpoints.replace("http", "https"), broker_tls(files))
    assert "write http:// in haEtcdEndpoints" in problem


async def test_a_certificate_for_another_host_is_refused(files: Path, tmp_path: Path) -> None:
    ca, certificate, key = (files / name for name in ("ca.pem", "other.pem", "other.key"))
    tls = EtcdTls(ca, certificate, key, checks_name=False)
    with etcd_cluster(tmp_path / "etcd", tls=tls) as etcd:
        problem = await problem_of(etcd.endpoints, broker_tls(files))
    assert "its certificate is refused" in problem
    assert "127.0.0.1" in problem


async def test_a_missing_certificate_file_is_a_wrong_setting(files: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.pem"):
        async with authority_on(
            "https://127.0.0.1:1", new_group(), tls=broker_tls(files, "missing.pem")
        ):
            pass


# -- users -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def users_etcd(release: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    folder = tmp_path_factory.mktemp("users")
    flags = ["--auth-token-ttl", str(TOKEN_S), "--bcrypt-cost", "4"]
    with etcd_cluster(folder, 3, release=release, flags=flags) as cluster:
        cluster.enable_users(USER, PASSWORD, PREFIX)
        yield cluster


async def used(authority: EtcdAuthority, number: int) -> None:
    """One request of each kind."""
    joined = await authority.join(a_replica(number), None)
    await authority.keep_alive(an_alive(joined.incarnation))
    await authority.keep_alive(an_alive(joined.incarnation))
    view = await authority.read()
    outcome = await authority.propose(Proposal(state=a_state(1, number), revision=view.revision))
    assert outcome.result is Result.OK
    views = authority.watch(outcome.revision - 1)
    assert (await anext(views)).state == a_state(1, number)
    await views.aclose()


async def test_etcd_with_users(users_etcd: EtcdCluster) -> None:
    async with authority_on(users_etcd, new_group(), user=USER, password=PASSWORD) as authority:
        await used(authority, 1)


def logins(etcd: EtcdCluster) -> int:
    """How many logins succeeded, by the metrics of all members."""
    line = re.compile(
        r'^grpc_server_handled_total\{grpc_code="OK",grpc_method="Authenticate".*\} (\d+)$', re.M
    )
    pages = (member.http("GET", "/metrics")[1].decode() for member in etcd.members)
    return sum(int(count) for page in pages for count in line.findall(page))


async def test_a_token_that_expired_is_replaced(users_etcd: EtcdCluster) -> None:
    async with authority_on(users_etcd, new_group(), user=USER, password=PASSWORD) as authority:
        await used(authority, 1)
        # etcd looks for expired tokens every second.
        await asyncio.sleep(TOKEN_S + 1.5)
        before = logins(users_etcd)
        await used(authority, 2)
        assert logins(users_etcd) == before + 1


async def test_a_token_that_became_invalid_is_replaced(users_etcd: EtcdCluster) -> None:
    """A member forgets its tokens when it restarts."""
    async with authority_on(users_etcd, new_group(), user=USER, password=PASSWORD) as authority:
        await used(authority, 1)
        users_etcd.restart_all()
        await used(authority, 2)
        # Changes of users make older tokens invalid, too.
        token = users_etcd.root_token()
        users_etcd.members[0].post("auth/role/add", {"name": "another"}, token)
        await used(authority, 3)


async def refusal_of(endpoints: EtcdCluster, user: str, password: str, prefix: str = PREFIX) -> str:
    keys = new_group()
    keys = type(keys)(prefix.encode() + keys.prefix)
    async with authority_on(endpoints, keys, user=user, password=password) as authority:
        with pytest.raises(AuthorityError) as error:
            await authority.read()
        outcome = await authority.propose(Proposal(state=a_state(), revision=0))
        assert outcome.result is Result.UNKNOWN
        with pytest.raises(AuthorityError):
            await anext(authority.watch(1))
    return str(error.value)


async def test_what_is_wrong_with_a_user_is_said(users_etcd: EtcdCluster) -> None:
    assert "correct haEtcdUser and haEtcdPassword" in await refusal_of(users_etcd, USER, "wrong")
    assert "correct haEtcdUser and haEtcdPassword" in await refusal_of(users_etcd, "x", PASSWORD)
    assert "set haEtcdUser and haEtcdPassword" in await refusal_of(users_etcd, "", "")
    elsewhere = await refusal_of(users_etcd, USER, PASSWORD, "/elsewhere/")
    assert "permission denied: give the role" in elsewhere
    assert PASSWORD not in elsewhere


async def test_a_user_for_an_etcd_without_users_is_a_warning(
    etcd: EtcdCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with authority_on(etcd, new_group(), user=USER, password=PASSWORD) as authority:
        await used(authority, 1)
    assert caplog.text.count("authentication is off") == 1
