"""Missing brokers: those that earlier checks saw, or that are expected, and are not registered.

A nameserver forgets a broker that is down, so a single check would see a smaller, healthy cluster.
Brokers seen by earlier checks are therefore an input: one that is no longer registered is an error
until it returns or is forgotten on request. Brokers may also be expected by name or number.

The caller stores the known brokers between checks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from tianzhou.admin.doctor.findings import Finding, Level
from tianzhou.admin.fanout import BrokerRef
from tianzhou.errors import ConfigError, TargetError

KNOWN_MAX = 4_096
"""Maximum number of known brokers; beyond it those seen longest ago are forgotten."""
BROKERS = "brokers"
"""The name of the check."""
FORGET_ALL = "all"

BrokerKey = tuple[str, str, int]
"""Cluster, name and id of a broker."""


class KnownBroker(msgspec.Struct, frozen=True):
    """A broker that was registered at an earlier check."""

    cluster: str
    name: str
    broker_id: int
    address: str
    seen_ms: int

    @property
    def key(self) -> BrokerKey:
        return self.cluster, self.name, self.broker_id

    @property
    def label(self) -> str:
        return BrokerRef(self.name, self.broker_id, self.address, self.cluster).label


Expected = int | str
"""A minimum number of brokers, or the label of a broker that must be registered."""


def expectation(text: str) -> Expected:
    """Parse "3" (minimum number), "broker-a" or, for a slave, "broker-a[1]".

    Raises ConfigError.
    """
    text = text.strip()
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    if not text or text.lstrip("-").isdigit():
        raise ConfigError(
            f"--expect {text or '(nothing)'}: write a number of brokers (at least 1), a broker's "
            "name, or NAME[ID] for a slave"
        )
    return text.removesuffix("[0]")


@dataclass(slots=True)
class Presence:
    """The known and expected brokers of one cluster."""

    known: dict[BrokerKey, KnownBroker] = field(default_factory=dict[BrokerKey, KnownBroker])
    expected: Sequence[Expected] = ()

    def check(self, brokers: Iterable[BrokerRef], now_ms: int) -> list[Finding]:
        """Findings about missing brokers; adds the registered ones to the known ones."""
        registered = {(at.cluster, at.name, at.broker_id): at for at in brokers}
        missing = self.missing(registered.values())
        self.known |= {
            key: KnownBroker(at.cluster, at.name, at.broker_id, at.address, now_ms)
            for key, at in registered.items()
        }
        self._bound()
        findings = [_missing_finding(each) for each in missing]
        findings += _unexpected(
            self.expected, list(registered.values()), {each.label for each in missing}
        )
        if not registered and not findings:
            findings.append(
                Finding(
                    Level.ERROR, BROKERS, "cluster", "no broker is registered",
                    "start one with the address of this nameserver",
                )
            )  # fmt: skip
        return findings

    def missing(self, brokers: Iterable[BrokerRef]) -> list[KnownBroker]:
        """Known brokers that are not registered."""
        registered = {(at.cluster, at.name, at.broker_id) for at in brokers}
        return [each for key, each in sorted(self.known.items()) if key not in registered]

    def forget(self, names: Sequence[str], brokers: Iterable[BrokerRef]) -> list[KnownBroker]:
        """Forget missing brokers by name, label or "all"; returns them.

        Raises TargetError for a name that is not missing.
        """
        missing = self.missing(brokers)
        chosen: dict[BrokerKey, KnownBroker] = {}
        for name in names:
            own = [each for each in missing if name in (FORGET_ALL, each.name, each.label)]
            if not own and name != FORGET_ALL:
                labels = ", ".join(each.label for each in missing) or "none"
                raise TargetError(f"{name} is not a missing broker; missing: {labels}")
            chosen |= {each.key: each for each in own}
        for key in chosen:
            del self.known[key]
        return list(chosen.values())

    def _bound(self) -> None:
        surplus = len(self.known) - KNOWN_MAX
        if surplus > 0:
            for old in sorted(self.known.values(), key=lambda each: each.seen_ms)[:surplus]:
                del self.known[old.key]


def _missing_finding(each: KnownBroker) -> Finding:
    seen = datetime.fromtimestamp(each.seen_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return Finding(
        Level.ERROR,
        BROKERS,
        f"{each.label} {each.address}",
        f"is no longer registered; last seen at {seen}",
        f"start it; if it was removed on purpose: tianzhou doctor --forget {each.label}",
    )


def _unexpected(
    expected: Sequence[Expected], registered: Sequence[BrokerRef], reported: set[str]
) -> list[Finding]:
    """Expected brokers that are not registered, without those reported as missing."""
    labels = {at.label for at in registered}
    findings = [
        Finding(
            Level.ERROR, BROKERS, each, "is expected but not registered",
            "start it, or see its log for why it does not register",
        )
        for each in expected
        if isinstance(each, str) and each not in labels | reported
    ]  # fmt: skip
    most = max((each for each in expected if isinstance(each, int)), default=0)
    if len(registered) < most:
        what = f"{most} expected, {len(registered)} registered: {', '.join(sorted(labels)) or '-'}"
        advice = "start the missing ones"
        findings.append(Finding(Level.ERROR, BROKERS, "cluster", what, advice))
    return findings
