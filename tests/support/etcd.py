"""Real etcd on loopback for tests: one member or several, killed, stopped and restarted by pid.

    with etcd_cluster(tmp_path, 3) as etcd:
        etcd.endpoints                 "http://127.0.0.1:12000;..."
        etcd.leader().kill()
        etcd.members[0].stop()         SIGSTOP; `resume` ends it
        etcd.members[1].restart()

Everything is blocking. The data is in the given folder and removed at the end.
"""

import base64
import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.support.etcd_programs import program
from tests.support.ports import free_port

START_S = 60.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """Files of a cluster that speaks TLS."""

    authority: Path
    certificate: Path
    key: Path
    wants_client_certificate: bool = False
    checks_name: bool = True
    """Of the certificate, when the tests themselves ask it."""

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of etcd."""
        flags = ["--cert-file", str(self.certificate), "--key-file", str(self.key)]
        if self.wants_client_certificate:
            flags += ["--client-cert-auth", "--trusted-ca-file", str(self.authority)]
        return tuple(flags)

    def context(self) -> ssl.SSLContext:
        """Of a client."""
        context = ssl.create_default_context(cafile=str(self.authority))
        context.check_hostname = self.checks_name
        context.load_cert_chain(self.certificate, self.key)
        return context


@dataclass(slots=True)
class Etcd:
    """One member."""

    name: str
    port: int
    """For clients."""
    folder: Path
    flags: tuple[str, ...]
    program: Path
    host: str = "127.0.0.1"
    tls: EtcdTls | None = None
    process: subprocess.Popen[bytes] | None = None
    is_stopped: bool = False
    prefix: Sequence[str] = ()
    """Before the command: `ip netns exec NAME`, for example."""

    @property
    def peer_port(self) -> int:
        """For the other members."""
        return self.port + 1

    @property
    def endpoint(self) -> str:
        """As in haEtcdEndpoints."""
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"

    @property
    def is_running(self) -> bool:
        """The process is there, also if it is stopped."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the process; it is ready later."""
        assert not self.is_running
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ETCD_")}
        environment |= {"GOMAXPROCS": "2"}
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, str(self.program), *self._own_flags(), *self.flags],
                stdout=log, stderr=log, env=environment,
            )  # fmt: skip

    def kill(self) -> None:
        """SIGKILL."""
        process = self.process
        if process is not None:
            process.kill()
            process.wait(30)
        self.process, self.is_stopped = None, False

    def stop(self) -> None:
        """SIGSTOP: the kernel still accepts connections."""
        self._signal(signal.SIGSTOP)
        self.is_stopped = True

    def resume(self) -> None:
        """The end of `stop`."""
        self._signal(signal.SIGCONT)
        self.is_stopped = False

    def restart(self) -> None:
        """With its data."""
        self.kill()
        self.start()

    def wipe(self) -> None:
        """Kill it and delete its data."""
        self.kill()
        shutil.rmtree(self._data, ignore_errors=True)

    def post(self, path: str, body: Mapping[str, Any], token: str = "") -> Any:  # noqa: ANN401
        """A request to the gateway; AssertionError if it is refused."""
        headers = {"Authorization": token} if token else {}
        status, content = self.http("POST", f"/v3/{path}", json.dumps(body).encode(), headers)
        assert status == 200, f"{path}: {status} {content!r}"
        return json.loads(content)

    def http(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Any request."""
        connection = (
            http.client.HTTPSConnection(
                self.host, self.port, timeout=10, context=self.tls.context()
            )
            if self.tls
            else http.client.HTTPConnection(self.host, self.port, timeout=10)
        )
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def is_healthy(self) -> bool:
        """It has a leader and carries out requests."""
        try:
            status, body = self.http("GET", "/health")
        except (OSError, http.client.HTTPException):
            return False
        return status == 200 and json.loads(body).get("health") in ("true", True)

    def log_text(self) -> str:
        """What it logged."""
        return (self.folder / f"{self.name}.log").read_text(errors="replace")

    @property
    def _data(self) -> Path:
        return self.folder / f"{self.name}.data"

    def _own_flags(self) -> list[str]:
        peer = f"http://{self.host}:{self.peer_port}"
        flags = {
            "name": self.name, "data-dir": str(self._data),
            "listen-client-urls": self.endpoint, "advertise-client-urls": self.endpoint,
            "listen-peer-urls": peer, "initial-advertise-peer-urls": peer,
        }  # fmt: skip
        return [part for key, value in flags.items() for part in (f"--{key}", value)]

    def _signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)


@dataclass(slots=True)
class EtcdCluster:
    """Members that know each other."""

    members: list[Etcd]
    has_users: bool = False

    @property
    def endpoints(self) -> str:
        """As in haEtcdEndpoints."""
        return ";".join(member.endpoint for member in self.members)

    @property
    def running(self) -> list[Etcd]:
        """The members that could answer."""
        return [each for each in self.members if each.is_running and not each.is_stopped]

    def start(self) -> None:
        """Start those that do not run, and wait until all that run are healthy."""
        for member in self.members:
            if not member.is_running:
                member.start()
        self.wait_healthy()

    def wait_healthy(self) -> None:
        """Until all running members have a leader and carry out requests."""
        for member in self.running:
            _wait(member.is_healthy, f"{member.name} is not healthy", member)

    def leader(self) -> Etcd:
        """The member that leads."""
        return _wait(self._leader, "no member leads", self.members[0])

    def follower(self) -> Etcd:
        """A running member that does not lead."""
        leader = self.leader()
        return next(member for member in self.running if member is not leader)

    def restart_all(self) -> None:
        """All with their data."""
        for member in self.members:
            member.kill()
        self.start()

    def set_up_anew(self) -> None:
        """All without their data."""
        for member in self.members:
            member.wipe()
        self.start()

    def close(self) -> None:
        """Kill all, and delete their data."""
        for member in self.members:
            member.wipe()

    def enable_users(self, user: str, password: str, prefix: str) -> None:
        """Switch authentication on: a root, and a user with the keys below a prefix."""
        first = self.members[0]
        first.post("auth/user/add", {"name": "root", "password": "root-password"})
        first.post("auth/user/grant", {"user": "root", "role": "root"})
        first.post("auth/role/add", {"name": "brokers"})
        first.post("auth/role/grant", {"name": "brokers", "perm": {
            "permType": "READWRITE", "key": _base64(prefix),
            "range_end": _base64(prefix[:-1] + chr(ord(prefix[-1]) + 1)),
        }})  # fmt: skip
        first.post("auth/user/add", {"name": user, "password": password})
        first.post("auth/user/grant", {"user": user, "role": "brokers"})
        first.post("auth/enable", {})
        self.has_users = True

    def root_token(self) -> str:
        """A login of root."""
        body = {"name": "root", "password": "root-password"}
        token: str = self.running[0].post("auth/authenticate", body)["token"]
        return token

    def revision(self) -> int:
        """The present one."""
        answer = self.running[0].post("kv/range", {"key": _base64("-")}, self._token())
        return int(answer["header"]["revision"])

    def compact(self) -> None:
        """Forget all changes up to now."""
        body = {"revision": str(self.revision()), "physical": True}
        self.running[0].post("kv/compaction", body, self._token())

    def put(self, key: str, value: bytes) -> None:
        """Write a key without a lease."""
        body = {"key": _base64(key), "value": base64.b64encode(value).decode()}
        self.running[0].post("kv/put", body, self._token())

    def delete(self, key: str) -> None:
        """Delete a key."""
        self.running[0].post("kv/deleterange", {"key": _base64(key)}, self._token())

    def keys(self, prefix: str) -> dict[str, bytes]:
        """The keys that begin with a prefix, and their values."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        body = {"key": _base64(prefix), "range_end": _base64(end)}
        answer = self.running[0].post("kv/range", body, self._token())
        return {
            base64.b64decode(found["key"]).decode(): base64.b64decode(found.get("value", ""))
            for found in answer.get("kvs", [])
        }

    def _token(self) -> str:
        return self.root_token() if self.has_users else ""

    def _leader(self) -> Etcd | None:
        for member in self.running:
            with suppress(OSError, http.client.HTTPException, AssertionError):
                status = member.post("maintenance/status", {}, self._token())
                if status.get("leader") == status["header"]["member_id"]:
                    return member
        return None


@contextmanager
def etcd_cluster(
    folder: Path,
    count: int = 1,
    *,
    release: str = "",
    flags: Sequence[str] = (),
    tls: EtcdTls | None = None,
    hosts: Sequence[str] = (),
    prefixes: Sequence[Sequence[str]] = (),
) -> Generator[EtcdCluster]:
    """A healthy cluster; `hosts` and `prefixes` put each member on another address or namespace."""
    path = program(release)
    folder.mkdir(parents=True, exist_ok=True)
    members = [
        Etcd(f"etcd{number}", free_port(1), folder, (), path, tls=tls)
        for number in range(1, count + 1)
    ]
    for member, host in zip(members, hosts, strict=False):
        member.host = host
    for member, prefix in zip(members, prefixes, strict=False):
        member.prefix = prefix
    peers = ",".join(f"{each.name}=http://{each.host}:{each.peer_port}" for each in members)
    shared = (
        "--initial-cluster", peers, "--initial-cluster-token", folder.name,
        *(tls.flags if tls else ()), *flags,
    )  # fmt: skip
    for member in members:
        member.flags = shared
    cluster = EtcdCluster(members)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


def _wait(probe: Callable[[], T | None], what: str, member: Etcd) -> T:
    deadline_s = time.monotonic() + START_S
    while not (seen := probe()):
        if time.monotonic() > deadline_s or not member.is_running:
            raise AssertionError(f"{what} within {START_S} s:\n{member.log_text()[-4000:]}")
        time.sleep(0.02)
    return seen


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
