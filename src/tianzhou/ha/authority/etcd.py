"""The authority on etcd: the interface of `values.Authority` by transactions, leases and a watch.

    join        `replicas/ID` by a transaction that compares its revision (0: a free id). An id
                belongs to one store (storeId): a broker with another store gets another id, so that
                an emptied disk is never taken for the one that was in sync. While `alive/ID` is
                held from another address, the store was copied: refused
    keep_alive  one POST renews the lease. `alive/ID` is put when it is absent or the incarnation or
                epoch changed; a new end of the log waits for ALIVE_PUT_MS, as each put is a write
                to the disks of etcd
    read        one linearizable range over the whole prefix
    propose     one transaction: it compares the revision of `state` and of further keys. Without an
                answer, or with one of another cluster than was read, it is UNKNOWN, and never sent
                a second time by itself
    watch       each change is followed by a read, so that every view is linearizable. Views of
                `read` and `watch` may overtake each other: the larger `read_revision` is newer

etcd gives leases of 2 s at least, and longer ones if its election time-out is longer. A new leader
of etcd renews all leases. Everything below the prefix is checked: a key with wrong content is an
error that names it, keys with unknown names are ignored, more than ETCD_KEYS_MAX keys are an error.
"""

import logging
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Any

from tianzhou.clock import Clock, steady_ms
from tianzhou.errors import AuthorityError, IdentityHeld
from tianzhou.ha.authority import encoding
from tianzhou.ha.authority.etcd_answers import (
    KeyValue,
    LeaseAnswer,
    RangeAnswer,
    TxnAnswer,
    decode,
    decode_streamed,
)
from tianzhou.ha.authority.etcd_client import Answered, Call, EtcdClient, EtcdUnreachable, NoAnswer
from tianzhou.ha.authority.etcd_endpoints import EtcdAccess
from tianzhou.ha.authority.etcd_keys import STATE, GroupKeys, Name
from tianzhou.ha.authority.etcd_member import MemberHealth
from tianzhou.ha.authority.etcd_watch import Compacted, Watch
from tianzhou.ha.authority.values import (
    REPLICAS_MAX,
    WISH_LEASE_MS,
    Alive,
    GroupState,
    Joined,
    Known,
    Outcome,
    Proposal,
    Replica,
    Result,
    View,
    Wish,
)
from tianzhou.limits import ETCD_KEYS_MAX, ETCD_VALUE_BYTES_MAX

log = logging.getLogger(__name__)

ALIVE_PUT_MS = 1_000
READ_BUDGET_S = 2.0
PROPOSE_BUDGET_S = 3.0
PROBE_BUDGET_S = 1.0
JOIN_TRIES_MAX = REPLICAS_MAX + 8
_CLOSE_BUDGET_S = 0.5

_RANGE = Call("kv/range", partial(decode, RangeAnswer))
_TXN = Call("kv/txn", partial(decode, TxnAnswer), is_repeatable=False)
_GRANT = Call("lease/grant", partial(decode, LeaseAnswer))
_RENEW = Call("lease/keepalive", partial(decode_streamed, LeaseAnswer), is_linear=False)
_REVOKE = Call("lease/revoke", partial(decode, LeaseAnswer))


class EtcdAuthority:
    """One group on etcd; one call of `join` and of `keep_alive` at a time."""

    def __init__(
        self, client: EtcdClient, keys: GroupKeys, lease_s: int = 3, clock: Clock = steady_ms
    ) -> None:
        self._client = client
        self._keys = keys
        self._lease_s = lease_s
        self._clock = clock
        self._id: int | None = None
        self._lease = ""
        """Empty: none."""
        self._put: Alive | None = None
        """What `alive/ID` has, under the own lease."""
        self._put_ms = 0
        self._is_unknown = False
        """How the last proposal ended."""
        self._read_cluster = ""
        """The id of the etcd cluster that was read last."""

    async def join(self, replica: Replica, known_id: int | None) -> Joined:
        """See `values.Authority`."""
        for _ in range(JOIN_TRIES_MAX):
            view = await self.read()
            replica_id, revision = choose_id(view, replica, known_id)
            name: Name = ("replicas", replica_id)
            put = self._put_operation(name, encoding.encode(replica))
            try:
                answer = await self._txn([self._compare(name, revision)], [put])
            except NoAnswer as error:
                log.info("etcd: whether replica %d joined is read again: %s", replica_id, error)
                continue
            if answer.succeeded:
                self._id, self._put = replica_id, None
                return Joined(replica_id, answer.header.revision)
        raise AuthorityError(
            f"no id after {JOIN_TRIES_MAX} attempts: other brokers join at the same time, or etcd "
            "does not answer transactions in time"
        )

    async def read(self) -> View:
        """See `values.Authority`."""
        keys = self._keys
        body = {"key": keys.prefix, "range_end": keys.end, "limit": str(ETCD_KEYS_MAX)}
        answer = (await self._client.call(_RANGE, body, READ_BUDGET_S)).answer
        if answer.more:
            raise AuthorityError(
                f"there are more than {ETCD_KEYS_MAX} keys below {keys.prefix.decode()}: delete "
                "those that are not of this group"
            )
        view = view_of(keys, answer)
        self._read_cluster = view.cluster_id
        return view

    async def propose(self, proposal: Proposal) -> Outcome:
        """See `values.Authority`."""
        compares = [self._compare(STATE, proposal.revision)]
        compares += [self._compare(key, revision) for key, revision in proposal.unchanged]
        operations = [self._put_operation(STATE, encoding.encode(proposal.state))]
        operations += [
            {"request_delete_range": {"key": self._keys.key(key)}} for key in proposal.deletes
        ]
        cluster = self._read_cluster
        try:
            answer = await self._txn(compares, operations)
        except EtcdUnreachable as error:
            # It is repeated until etcd answers: one line is enough.
            level = logging.DEBUG if self._is_unknown else logging.WARNING
            log.log(level, "etcd: how a change of the group ended is not known: %s", error)
            self._is_unknown = True
            return Outcome(Result.UNKNOWN)
        if cluster not in ("", answer.header.cluster_id):
            # Revisions of two clusters cannot be compared: this says nothing about the one read.
            log.warning(
                "etcd: a change of the group was answered by cluster %s, but cluster %s was read",
                answer.header.cluster_id, cluster,
            )  # fmt: skip
            return Outcome(Result.UNKNOWN)
        self._is_unknown = False
        if not answer.succeeded:
            return Outcome(Result.CHANGED, answer.header.revision)
        return Outcome(Result.OK, answer.header.revision)

    async def watch(self, from_revision: int) -> AsyncGenerator[View]:
        """See `values.Authority`. A consumer that stops before the end calls `aclose`."""
        seen = from_revision
        while True:
            try:
                watch = await self._watch(seen + 1)
                try:
                    while True:
                        if await watch.changed() > seen:
                            view = await self.read()
                            seen = view.read_revision
                            yield view
                finally:
                    watch.close()
            except Compacted:
                view = await self.read()
                seen = view.read_revision
                yield view

    async def _watch(self, start_revision: int) -> Watch:
        keys = self._keys
        body = {
            "key": keys.prefix,
            "range_end": keys.end,
            "start_revision": str(start_revision),
        }
        return await self._client.watch(body, READ_BUDGET_S)

    async def wish(self, wish: Wish) -> None:
        """See `values.Authority`. Refused while another wish is pending."""
        lease = await self._granted(WISH_LEASE_MS // 1000)
        name: Name = ("wish", None)
        put = self._put_operation(name, encoding.encode(wish), lease.answer.id)
        answer = await self._txn([self._compare(name, 0)], [put])
        if not answer.succeeded:
            raise AuthorityError(
                "another request of an operator is pending: wait until it is carried out, or for "
                f"{WISH_LEASE_MS // 1000} s"
            )

    def health(self) -> tuple[MemberHealth, ...]:
        """How the members of etcd answered, by endpoint."""
        return self._client.health()

    async def probe(self) -> tuple[MemberHealth, ...]:
        """The same, after asking each of them now; for operators."""
        return await self._client.probe(PROBE_BUDGET_S)

    def use(self, access: EtcdAccess) -> None:
        """Other endpoints, users or certificates of the same etcd. Raises ConfigError."""
        self._client.use(access)

    async def close(self) -> None:
        """See `values.Authority`."""
        lease, self._lease = self._lease, ""
        if lease:
            try:
                await self._client.call(_REVOKE, {"ID": lease}, _CLOSE_BUDGET_S)
            except AuthorityError as error:
                log.info("etcd: the lease is left to expire: %s", error)
        self._client.close()

    # -- the lease -------------------------------------------------------------------------------

    async def keep_alive(self, alive: Alive) -> int:
        """See `values.Authority`."""
        assert self._id is not None, "join first"
        sent_ms = await self._renewed() if self._lease else 0
        if not self._lease:
            granted = await self._granted(self._lease_s)
            self._lease, sent_ms = granted.answer.id, granted.sent_ms
        if self._put is None:
            await self._put_alive(("alive", self._id), alive)
        elif self._is_due(self._put, alive):
            try:
                await self._refresh_alive(("alive", self._id), alive)
            except EtcdUnreachable as error:
                # The renewal counts, and the key is still there.
                log.info("etcd: alive/%d is put again later: %s", self._id, error)
        return sent_ms

    async def _renewed(self) -> int:
        renewed = await self._client.call(_RENEW, {"ID": self._lease}, self._lease_s / 3)
        if not renewed.answer.ttl_s:
            log.warning("etcd: the lease of this broker has expired; it gets a new one")
            self._lease, self._put = "", None
        return renewed.sent_ms

    async def _granted(self, lease_s: int) -> Answered[LeaseAnswer]:
        granted = await self._client.call(_GRANT, {"TTL": str(lease_s)}, self._lease_s / 3)
        if granted.answer.ttl_s > lease_s:
            log.warning(
                "etcd gives leases of %d s, not of %d s as asked for: its election time-out is "
                "long, and so the detection of a master that is gone takes longer",
                granted.answer.ttl_s, lease_s,
            )  # fmt: skip
        if not (granted.answer.id and granted.answer.ttl_s):
            raise AuthorityError("etcd granted no lease")
        return granted

    def _is_due(self, put: Alive, alive: Alive) -> bool:
        if put == alive:
            return False
        is_urgent = (put.incarnation, put.epoch) != (alive.incarnation, alive.epoch)
        return is_urgent or self._clock() - self._put_ms >= ALIVE_PUT_MS

    async def _put_alive(self, name: Name, alive: Alive) -> None:
        """Raises AuthorityError, also if the key is under the lease of another process."""
        read = {"request_range": {"key": self._keys.key(name)}}
        absent = self._compare(name, 0)
        answer = await self._put_under_lease(name, alive, absent, [read])
        if answer.succeeded:
            return
        held = [found for each in answer.responses if each.response_range
                for found in each.response_range.kvs]  # fmt: skip
        if held and held[0].lease == self._lease:
            await self._refresh_alive(name, alive)
            return
        raise IdentityHeld(
            f"alive/{self._id} is held by another process: an earlier one of this broker, whose "
            f"lease ends within {self._lease_s} s, or a broker that runs on a copy of this store: "
            "stop that one, and empty its store"
        )

    async def _refresh_alive(self, name: Name, alive: Alive) -> None:
        compare = {
            "target": "LEASE", "result": "EQUAL", "key": self._keys.key(name), "lease": self._lease,
        }  # fmt: skip
        if not (await self._put_under_lease(name, alive, compare, [])).succeeded:
            self._put = None
            raise AuthorityError(f"alive/{self._id} was deleted or replaced; it is put again")

    async def _put_under_lease(
        self, name: Name, alive: Alive, compare: Mapping[str, Any], otherwise: list[Any]
    ) -> TxnAnswer:
        operation = self._put_operation(name, encoding.encode(alive), self._lease)
        answer = await self._txn([compare], [operation], otherwise, self._lease_s / 3)
        if answer.succeeded:
            self._put, self._put_ms = alive, self._clock()
        return answer

    # -- transactions ----------------------------------------------------------------------------

    def _compare(self, name: Name, revision: int) -> dict[str, Any]:
        """An absent key has revision 0."""
        return {
            "target": "MOD", "result": "EQUAL", "key": self._keys.key(name),
            "mod_revision": str(revision),
        }  # fmt: skip

    def _put_operation(self, name: Name, content: bytes, lease: str = "0") -> dict[str, Any]:
        if len(content) > ETCD_VALUE_BYTES_MAX:
            raise AuthorityError(
                f"{self._keys.key(name).decode()} would have {len(content)} bytes, at most "
                f"{ETCD_VALUE_BYTES_MAX}"
            )
        put = {"key": self._keys.key(name), "value": content, "lease": lease}
        return {"request_put": put}

    async def _txn(
        self,
        compares: list[Any],
        operations: list[Any],
        otherwise: list[Any] | None = None,
        budget_s: float = PROPOSE_BUDGET_S,
    ) -> TxnAnswer:
        """Raises NoAnswer if it may take effect later, AuthorityError if not."""
        body = {"compare": compares, "success": operations, "failure": otherwise or []}
        return (await self._client.call(_TXN, body, budget_s)).answer


# -- pure parts ------------------------------------------------------------------------------------


def choose_id(view: View, replica: Replica, known_id: int | None) -> tuple[int, int]:
    """The id of a broker that joins, and the revision that `replicas/ID` has. Raises
    AuthorityError.
    """
    own = [
        each for each, known in view.replicas.items() if known.value.store_id == replica.store_id
    ]
    if own:
        replica_id = known_id if known_id in own else min(own)
        other = view.replicas[replica_id].value.addr
        if replica_id in view.alive and other != replica.addr:
            raise IdentityHeld(
                f"the broker at {other} is alive as replica {replica_id} with the same store id "
                f"{replica.store_id}: the store here is a copy of its store: empty the copy"
            )
        return replica_id, view.replicas[replica_id].revision
    if known_id is not None and known_id not in view.replicas and 1 <= known_id <= REPLICAS_MAX:
        return known_id, 0
    if known_id is not None and known_id in view.alive and known_id in view.replicas:
        raise AuthorityError(
            f"id {known_id} belongs to the broker at {view.replicas[known_id].value.addr}, which "
            "has another store: this broker was retired, or its store was replaced: delete its "
            "brokerIdentity file, so that it joins as a new replica"
        )
    return _free_id(view), 0


def _free_id(view: View) -> int:
    """Not one that the state still names: the newcomer has none of the messages."""
    state = view.state
    named: set[int | None] = set()
    if state is not None:
        named |= {*state.in_sync, *state.lost, state.master}
    for replica_id in range(1, REPLICAS_MAX + 1):
        if replica_id not in view.replicas and replica_id not in named:
            return replica_id
    raise AuthorityError(
        f"the group has {REPLICAS_MAX} replicas, which is the limit: retire those that are gone: "
        "tianzhou broker retire"
    )


def view_of(keys: GroupKeys, answer: RangeAnswer) -> View:
    """The view that a read of all keys shows. Raises AuthorityError for wrong content."""
    replicas: dict[int, Known[Replica]] = {}
    alive: dict[int, Known[Alive]] = {}
    wish: Known[Wish] | None = None
    state: Known[GroupState] | None = None
    for found in answer.kvs:
        kind, replica_id = keys.name(found.key) or ("", None)
        try:
            if kind == "state":
                state = Known(encoding.decode_state(found.value), found.mod_revision)
            elif kind == "wish":
                wish = Known(encoding.decode_wish(found.value), found.mod_revision)
            elif kind == "replicas" and replica_id is not None:
                value = encoding.decode_replica(found.value)
                replicas[replica_id] = Known(value, found.mod_revision)
            elif kind == "alive" and replica_id is not None:
                alive[replica_id] = Known(encoding.decode_alive(found.value), found.mod_revision)
        except AuthorityError as error:
            raise AuthorityError(
                f"{_shown(found)} in etcd: {error}: correct it, or restore it from a backup"
            ) from error
    return View(
        cluster_id=answer.header.cluster_id,
        read_revision=answer.header.revision,
        revision=state.revision if state else 0,
        state=state.value if state else None,
        replicas=replicas,
        alive=alive,
        wish=wish,
    )


def _shown(found: KeyValue) -> str:
    return found.key.decode("utf-8", "backslashreplace")
