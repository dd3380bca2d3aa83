"""Answers that do not arrive, servers that are not etcd, members that are behind."""

import asyncio
import base64
import logging
import random
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest
from tests.support.brokers import eventually
from tests.support.etcd import EtcdCluster, etcd_cluster
from tests.support.etcd_groups import (
    Proxy,
    Serve,
    a_replica,
    a_state,
    an_alive,
    authority_on,
    gateway_proxy,
    new_group,
    read_request,
    server,
)
from tests.support.ports import free_port

from tianzhou.errors import AuthorityError
from tianzhou.ha.authority.encoding import decode_state
from tianzhou.ha.authority.etcd_endpoints import EtcdAccess, parse_endpoints
from tianzhou.ha.authority.etcd_keys import STATE
from tianzhou.ha.authority.values import GroupState, Outcome, Proposal, Result, View
from tianzhou.remoting import sockets

PATIENCE_S = 15.0
UNKNOWN = Outcome(Result.UNKNOWN)


@pytest.fixture
async def proxy(etcd: EtcdCluster) -> AsyncIterator[Proxy]:
    async with gateway_proxy(etcd.members[0].endpoint) as proxy:
        yield proxy


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


# -- transactions without an answer ----------------------------------------------------------------


async def test_a_transaction_whose_answer_is_lost_is_unknown_and_took_effect(
    proxy: Proxy,
) -> None:
    async with authority_on(proxy.endpoint, new_group()) as authority:
        proxy.fault = "lose answer"
        proposal = Proposal(state=a_state(), revision=0)
        assert await authority.propose(proposal) == UNKNOWN
        assert proxy.faults_count == 1, "never sent twice"
        proxy.fault = ""
        assert (await authority.read()).state == a_state()
        assert (await authority.propose(proposal)).result is Result.CHANGED


async def test_a_transaction_that_is_lost_is_unknown_and_can_be_repeated(proxy: Proxy) -> None:
    async with authority_on(proxy.endpoint, new_group()) as authority:
        proxy.fault = "lose request"
        proposal = Proposal(state=a_state(), revision=0)
        assert await authority.propose(proposal) == UNKNOWN
        assert proxy.faults_count == 1, "never sent twice"
        proxy.fault = ""
        assert (await authority.read()).state is None
        assert (await authority.propose(proposal)).result is Result.OK


async def test_an_unknown_transaction_may_take_effect_after_a_read(proxy: Proxy) -> None:
    """So a read that still shows the compared revision proves nothing."""
    async with authority_on(proxy.endpoint, new_group()) as authority:
        proxy.fault = "late"
        assert await authority.propose(Proposal(state=a_state(), revision=0)) == UNKNOWN
        proxy.fault = ""
        assert (await authority.read()).state is None
        proxy.release.set()

        async def is_there() -> bool:
            return (await authority.read()).state == a_state()

        await eventually(is_there, "the late transaction", PATIENCE_S)


async def test_a_time_out_of_etcd_itself_is_unknown(proxy: Proxy) -> None:
    async with authority_on(proxy.endpoint, new_group()) as authority:
        proxy.fault = "refuse"
        assert await authority.propose(Proposal(state=a_state(), revision=0)) == UNKNOWN
        assert proxy.faults_count == 1, "never sent twice"


async def test_a_proposal_that_reaches_no_member_is_unknown_too() -> None:
    async with authority_on(f"http://127.0.0.1:{free_port()}", new_group()) as authority:
        assert await authority.propose(Proposal(state=a_state(), revision=0)) == UNKNOWN


async def test_joining_goes_on_when_its_answer_is_lost(proxy: Proxy) -> None:
    async with authority_on(proxy.endpoint, new_group()) as authority:
        proxy.fault = "lose answer"
        joining = asyncio.create_task(authority.join(a_replica(1), None))
        await eventually(lambda: proxy.faults_count >= 2, "two lost answers", PATIENCE_S)
        proxy.fault = ""
        joined = await joining
        assert joined.id == 1
        view = await authority.read()
        assert {number: known.revision for number, known in view.replicas.items()} == {
            1: joined.incarnation
        }


async def test_a_renewal_whose_answer_is_lost_does_not_count(proxy: Proxy) -> None:
    async with authority_on(proxy.endpoint, new_group()) as authority:
        joined = await authority.join(a_replica(1), None)
        await authority.keep_alive(an_alive(joined.incarnation))
        proxy.path, proxy.fault = "/v3/lease/keepalive", "lose answer"
        with pytest.raises(AuthorityError, match="closed before the answer"):
            await authority.keep_alive(an_alive(joined.incarnation))
        proxy.fault = ""
        await authority.keep_alive(an_alive(joined.incarnation))


async def test_the_next_member_is_asked_when_one_fails(etcd: EtcdCluster, proxy: Proxy) -> None:
    """Also by a transaction, if the first member certainly has not got it."""
    dead = f"http://127.0.0.1:{free_port()}"
    endpoints = f"{dead};{proxy.endpoint}"
    async with authority_on(endpoints, new_group()) as authority:
        outcome = await authority.propose(Proposal(state=a_state(), revision=0))
        assert outcome.result is Result.OK
        joined = await authority.join(a_replica(1), None)
        await authority.keep_alive(an_alive(joined.incarnation))


# -- what an outcome promises ----------------------------------------------------------------------


def history(etcd: EtcdCluster, key: str, first: int, last: int) -> dict[int, GroupState]:
    """Every state that a key has had, by revision."""
    found: dict[int, GroupState] = {}
    for revision in range(first, last + 1):
        body = {"key": base64.b64encode(key.encode()).decode(), "revision": str(revision)}
        for each in etcd.members[0].post("kv/range", body).get("kvs", []):
            found[int(each["mod_revision"])] = decode_state(base64.b64decode(each["value"]))
    return found


async def test_outcomes_are_true_whatever_is_lost(etcd: EtcdCluster, stack: AsyncExitStack) -> None:
    """Three brokers propose; answers and requests are lost, and some requests arrive late.

    OK took effect, at the revision it names; CHANGED never did; UNKNOWN may have, once.
    """
    keys = new_group()
    dice = random.Random(21)
    outcomes: dict[int, Outcome] = {}
    proxies: list[Proxy] = []

    async def propose(number: int) -> None:
        proxy = await stack.enter_async_context(gateway_proxy(etcd.members[0].endpoint))
        proxies.append(proxy)
        authority = await stack.enter_async_context(authority_on(proxy.endpoint, keys))
        for count in range(40):
            proxy.fault = dice.choice(["", "", "lose answer", "lose request", "late", "refuse"])
            epoch = 100 * number + count
            view = await authority.read()
            proposal = Proposal(state=a_state(1, epoch), revision=view.revision)
            outcomes[epoch] = await authority.propose(proposal)
            if dice.random() < 0.1:
                proxy.release.set()

    first = etcd.revision()
    await asyncio.gather(*(propose(number) for number in (1, 2, 3)))
    for proxy in proxies:
        proxy.release.set()
        if proxy.late:
            await asyncio.wait(proxy.late)
    states = history(etcd, keys.key(STATE).decode(), first, etcd.revision())
    seen = Counter(state.epoch for state in states.values())
    assert set(seen.values()) == {1}, "each took effect once at most"
    for epoch, outcome in outcomes.items():
        if outcome.result is Result.OK:
            assert states[outcome.revision].epoch == epoch
        elif outcome.result is Result.CHANGED:
            assert epoch not in seen
    kinds = Counter(outcome.result for outcome in outcomes.values())
    effects = Counter(epoch in seen for epoch, each in outcomes.items() if each == UNKNOWN)
    assert set(kinds) == set(Result), kinds
    assert set(effects) == {True, False}, effects


# -- names, endpoints ------------------------------------------------------------------------------


async def test_a_name_with_several_addresses(
    etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of them refuses."""
    resolved(monkeypatch, "127.0.0.7", "127.0.0.1")
    async with authority_on(named(etcd), new_group()) as authority:
        assert (await authority.read()).state is None


async def test_a_resolver_that_fails_or_hangs(
    etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last known addresses are used, and one lookup at a time is waiting."""
    started: list[str] = []

    async def fails() -> list[str]:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    async def hangs() -> list[str]:
        started.append("lookup")
        await asyncio.Event().wait()
        return []

    async with authority_on(named(etcd), new_group()) as authority:
        resolved(monkeypatch, "127.0.0.1")
        await authority.read()
        for lookup in (fails, hangs):
            resolve_by(monkeypatch, lookup)
            for _ in range(3):
                # Four at a time need new connections.
                await asyncio.gather(*(authority.read() for _ in range(4)))
        assert started == ["lookup"]
    async with authority_on(named(etcd), new_group()) as unlucky:
        resolve_by(monkeypatch, fails)
        with pytest.raises(AuthorityError, match=r"etcd\.test cannot be resolved: Temporary"):
            await unlucky.read()


def named(etcd: EtcdCluster) -> str:
    return etcd.endpoints.replace("127.0.0.1", "etcd.test")


def resolved(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    async def lookup() -> list[str]:
        return list(addresses)

    resolve_by(monkeypatch, lookup)


def resolve_by(monkeypatch: pytest.MonkeyPatch, lookup: Callable[[], Awaitable[list[str]]]) -> None:
    """Names are looked up by the test; addresses stay what they are."""

    async def resolve(host: str, port: int) -> list[object]:
        addresses = await lookup() if host == "etcd.test" else [host]
        return [(socket.AF_INET, (address, port)) for address in addresses]

    monkeypatch.setattr(sockets, "resolve", resolve)


async def all_of(views: AsyncIterator[View]) -> list[View]:
    return [view async for view in views]


async def test_other_endpoints_while_it_runs(etcd: EtcdCluster) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    async with authority_on(dead, new_group()) as authority:
        with pytest.raises(AuthorityError, match="connection refused"):
            await authority.read()
        watching = authority.watch(1)
        authority.use(EtcdAccess(endpoints=parse_endpoints(etcd.endpoints)))
        joined = await authority.join(a_replica(1), None)
        await authority.keep_alive(an_alive(joined.incarnation))
        assert (await anext(watching)).read_revision >= joined.incarnation
        # The watch is on an endpoint that is not used any more.
        authority.use(EtcdAccess(endpoints=parse_endpoints(f"{etcd.endpoints};{dead}")))
        with pytest.raises(AuthorityError, match="the watch ended"):
            await all_of(watching)
        await authority.keep_alive(an_alive(joined.incarnation))
        healths = await authority.probe()
    assert [(each.is_answering, each.is_leader) for each in healths] == [
        (True, True), (False, False),
    ]  # fmt: skip
    assert re.fullmatch(r"3\.\d+\.\d+", healths[0].version)
    assert "connection refused" in healths[1].problem


async def test_no_connection_is_left_open(etcd: EtcdCluster) -> None:
    """Also not by requests that end after the authority was closed or has other endpoints."""
    connections: set[asyncio.StreamWriter] = set()
    release = asyncio.Event()
    member = Scripted()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(writer)
        if len(connections) > 1:
            await release.wait()
        try:
            await member.serve(reader, writer)
        finally:
            connections.discard(writer)

    access = EtcdAccess(endpoints=parse_endpoints(etcd.endpoints))
    async with server(serve) as endpoint, authority_on(endpoint, new_group()) as authority:
        for end in (lambda: authority.use(access), authority.close):
            release.clear()
            await authority.read()
            reads = [asyncio.create_task(authority.read()) for _ in range(3)]
            await eventually(lambda: len(connections) == 3, "connections", PATIENCE_S)
            ended = end()
            if ended is not None:
                await ended
            release.set()
            await asyncio.wait(reads)
            await eventually(lambda: not connections, "all are closed", PATIENCE_S)
            authority.use(EtcdAccess(endpoints=parse_endpoints(endpoint)))


# -- servers that are not etcd ---------------------------------------------------------------------


async def html(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    page = b"<html><body>It works!</body></html>"
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(page), page))
    await writer.drain()
    await reader.read()


async def bad_gateway(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 6\r\n\r\n<html>")
    await writer.drain()
    await reader.read()


async def noise(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(random.Random(3).randbytes(5000))
    await writer.drain()
    await reader.read()


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(1000):
        pass


async def body_without_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        await writer.drain()


async def head_without_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"Header: value\r\n" * 100)
        await writer.drain()


async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)


async def drips(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("serve", "part"),
    [
        (html, "<html>"),
        (bad_gateway, "HTTP status 502, '<html>': this is not an answer of etcd"),
        (noise, "no HTTP response"),
        (silence, "no answer within"),
        (body_without_end, "a body of at least"),
        (head_without_end, "the head of a response has over"),
        (closes, "closed before the answer"),
        (drips, "no answer within"),
    ],
)
async def test_a_port_that_is_not_etcd(
    serve: Serve, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    async with server(serve) as endpoint, authority_on(endpoint, new_group()) as authority:
        began_s = loop.time()
        with pytest.raises(AuthorityError) as error:
            await authority.read()
        assert loop.time() - began_s < 3
        assert part in str(error.value)
        assert endpoint in str(error.value)
        if serve is drips:
            return  # as slow as silence
        assert await authority.propose(Proposal(state=a_state(), revision=0)) == UNKNOWN
        if serve is silence:
            return
        with pytest.raises(AuthorityError, match=r"127\.0\.0\.1"):
            await anext(authority.watch(1))
    assert len(caplog.records) < 10, "one line when it begins, not one for each attempt"


async def test_a_member_that_hangs_does_not_hold_up_the_others(etcd: EtcdCluster) -> None:
    """The second member is asked after 300 ms, and first from then on."""
    loop = asyncio.get_running_loop()
    async with server(silence) as hanging:
        endpoints = f"{hanging};{etcd.endpoints}"
        async with authority_on(endpoints, new_group()) as authority:
            began_s = loop.time()
            joined = await authority.join(a_replica(1), None)
            assert 0.2 < loop.time() - began_s < 1.5
            began_s = loop.time()
            await authority.keep_alive(an_alive(joined.incarnation))
            for _ in range(5):
                await authority.read()
                await authority.propose(Proposal(state=a_state(), revision=0))
            assert loop.time() - began_s < 0.25
            first, second = authority.health()
            assert (first.is_answering, second.is_answering) == (False, True)


async def test_a_host_that_does_not_answer_at_all(etcd: EtcdCluster) -> None:
    """The transaction was not sent there, so the next member may get it."""
    with socket.socket() as gone, ExitStack() as callers:
        gone.bind(("127.0.0.1", 0))
        gone.listen(0)
        # The queue of connections is full: further ones are dropped, as by a firewall.
        for _ in range(3):
            caller = callers.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(gone.getsockname())
        endpoints = f"http://127.0.0.1:{gone.getsockname()[1]};{etcd.endpoints}"
        async with authority_on(endpoints, new_group()) as authority:
            outcome = await authority.propose(Proposal(state=a_state(), revision=0))
            assert outcome.result is Result.OK
            first, second = authority.health()
            assert (first.is_answering, second.is_answering) == (False, True)
            assert "no answer within" in first.problem


def watches(etcd: EtcdCluster) -> int:
    """How many streams a member serves, by its metrics."""
    page = etcd.members[0].http("GET", "/metrics")[1].decode()
    (count,) = re.findall(r"^etcd_debugging_mvcc_watch_stream_total (\d+)$", page, re.MULTILINE)
    return int(count)


async def test_a_watch_ends_when_another_request_to_its_member_fails(etcd: EtcdCluster) -> None:
    """A member that hangs keeps the stream open, and its machine acknowledges TCP keepalives."""
    async with authority_on(etcd, new_group()) as authority:
        revision = (await authority.read()).read_revision
        following = asyncio.create_task(all_of(authority.watch(revision)))
        await eventually(lambda: watches(etcd) == 1, "the watch has begun", PATIENCE_S)
        etcd.members[0].stop()
        try:
            assert not following.done()
            with pytest.raises(AuthorityError, match="no answer within"):
                await authority.read()
            done, _ = await asyncio.wait((following,), timeout=PATIENCE_S)
            assert done, "the watch hangs"
            with pytest.raises(AuthorityError, match="the watch ended"):
                following.result()
        finally:
            etcd.members[0].resume()


async def test_a_watch_ends_when_its_member_is_not_the_first(stack: AsyncExitStack) -> None:
    """No other request would show that it hangs."""
    slow, fast = Scripted(), Scripted()
    slow.login_s = 0.6
    endpoints = [await stack.enter_async_context(server(each.serve)) for each in (slow, fast)]
    authority = await stack.enter_async_context(
        authority_on(";".join(endpoints), new_group(), user="u", password="p")  # noqa: S106
    )
    following = asyncio.create_task(all_of(authority.watch(1)))
    await authority.read()
    with pytest.raises(AuthorityError, match="another member of etcd answers faster"):
        await asyncio.wait_for(following, PATIENCE_S)


async def test_a_gateway_that_is_switched_off(tmp_path: Path) -> None:
    # Without the gateway its health page is the only thing that answers.
    with etcd_cluster(tmp_path / "etcd", flags=["--enable-grpc-gateway=false"]) as etcd:
        async with authority_on(etcd, new_group()) as authority:
            with pytest.raises(AuthorityError, match="--enable-grpc-gateway=true"):
                await authority.read()


# -- members that are behind -----------------------------------------------------------------------


class Scripted:
    """A member that answers reads with a header of the test's choice."""

    def __init__(self) -> None:
        self.term, self.revision, self.cluster = 5, 100, "77"
        self.count = 0
        self.login_s = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            path, _ = await read_request(reader)
            self.count += 1
            header = (
                f'"header":{{"cluster_id":"{self.cluster}","member_id":"1",'
                f'"revision":"{self.revision}","raft_term":"{self.term}"}}'
            )
            body = f"{{{header}}}"
            if path == "/v3/watch":
                created = f'{{"result":{{{header},"created":true}}}}'
                head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                writer.write(f"{head}{len(created):x}\r\n{created}\r\n".encode())
                continue
            if path == "/v3/auth/authenticate":
                await asyncio.sleep(self.login_s)
                body = f'{{{header},"token":"t"}}'
            if path == "/v3/lease/keepalive":
                body = f'{{"result":{{{header},"ID":"7","TTL":"3"}}}}'
            if path == "/v3/lease/grant":
                body = f'{{{header},"ID":"7","TTL":"3"}}'
            if path == "/v3/kv/txn":
                body = f'{{{header},"succeeded":true}}'
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            await writer.drain()


@pytest.mark.parametrize("behind", ["term", "revision"])
async def test_a_stale_member_is_refused(stack: AsyncExitStack, behind: str) -> None:
    stale, fresh = Scripted(), Scripted()
    endpoints = [await stack.enter_async_context(server(each.serve)) for each in (stale, fresh)]
    authority = await stack.enter_async_context(authority_on(";".join(endpoints), new_group()))
    assert (await authority.read()).read_revision == 100
    assert (stale.count, fresh.count) == (1, 0)
    setattr(stale, behind, getattr(stale, behind) - 1)
    fresh.revision = 101
    assert (await authority.read()).read_revision == 101
    assert (stale.count, fresh.count) == (2, 1)
    # The other one is first now. When both are behind, nothing is read, and nothing counts.
    setattr(fresh, behind, getattr(stale, behind))
    with pytest.raises(AuthorityError, match="stale answer") as refused:
        await authority.read()
    assert "http or https" not in str(refused.value)
    assert await authority.propose(Proposal(state=a_state(), revision=0)) == UNKNOWN


async def test_a_renewal_by_an_old_leader_is_refused(stack: AsyncExitStack) -> None:
    member = Scripted()
    endpoint = await stack.enter_async_context(server(member.serve))
    authority = await stack.enter_async_context(authority_on(endpoint, new_group()))
    joined = await authority.join(a_replica(1), None)
    await authority.keep_alive(an_alive(joined.incarnation))
    # A member that is behind with its log may forward the renewal to the leader.
    member.revision = 50
    await authority.keep_alive(an_alive(joined.incarnation))
    member.term = 4
    with pytest.raises(AuthorityError, match="stale answer"):
        await authority.keep_alive(an_alive(joined.incarnation))


async def test_a_term_that_a_member_raised_by_itself_is_not_believed(
    stack: AsyncExitStack,
) -> None:
    """A member that is cut off does so; afterwards all others would seem to be behind."""
    member = Scripted()
    endpoint = await stack.enter_async_context(server(member.serve))
    authority = await stack.enter_async_context(authority_on(endpoint, new_group()))
    joined = await authority.join(a_replica(1), None)
    await authority.keep_alive(an_alive(joined.incarnation))
    member.term = 50
    await authority.keep_alive(an_alive(joined.incarnation))
    member.term = 5
    assert (await authority.read()).read_revision == 100


async def test_another_cluster_is_shown_not_hidden(
    stack: AsyncExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    member = Scripted()
    endpoint = await stack.enter_async_context(server(member.serve))
    authority = await stack.enter_async_context(authority_on(endpoint, new_group()))
    assert (await authority.read()).cluster_id == "77"
    member.cluster, member.revision, member.term = "78", 1, 1
    with caplog.at_level(logging.WARNING):
        view = await authority.read()
    assert (view.cluster_id, view.read_revision) == ("78", 1)
    assert "the cluster id changed from 77 to 78" in caplog.text


async def test_an_answer_of_another_cluster_than_was_read_settles_nothing(
    stack: AsyncExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    """Endpoints of two clusters, of which one is a copy: the revisions of both may be equal."""
    member = Scripted()
    endpoint = await stack.enter_async_context(server(member.serve))
    authority = await stack.enter_async_context(authority_on(endpoint, new_group()))
    proposal = Proposal(state=a_state(), revision=0)
    await authority.read()
    assert (await authority.propose(proposal)).result is Result.OK
    member.cluster = "78"
    with caplog.at_level(logging.WARNING):
        assert await authority.propose(proposal) == UNKNOWN
    assert "answered by cluster 78, but cluster 77 was read" in caplog.text
    await authority.read()
    assert (await authority.propose(proposal)).result is Result.OK
