"""Whether an account has what a request needs.

A retry topic belongs to a group by its name, but names can mean more than one group:

    %RETRY%a_b    what group a_b gave back, and what group a gave back of topic b (pop)
    %RETRY%a+b    what group a gave back of topic b (pop, retry topics V2)

A permission for all groups that are not listed must not open what an account is denied under the
other meaning. Names that are listed open what they name.
"""

from collections.abc import Callable, Iterator

from tianzhou.broker.acl.accounts import Account
from tianzhou.broker.acl.needs import PUB, SUB, Kind, Need, topic_need
from tianzhou.limits import TOPIC_NAME_BYTES_MAX
from tianzhou.names import TRACE_TOPIC

IsKnown = Callable[[str], bool]
"""Whether the broker has a topic, or a group, of a name."""


def nothing_known(_: str) -> bool:
    """A broker without topics and groups."""
    return False


class Rights:
    """What accounts may do, given the topics and groups of a broker."""

    def __init__(
        self,
        is_topic: IsKnown = nothing_known,
        is_group: IsKnown = nothing_known,
        trace_topic: str = TRACE_TOPIC,
    ) -> None:
        """`trace_topic` is this broker's topic of traces, besides the usual one."""
        self._is_topic = is_topic
        self._is_group = is_group
        self._trace_topic = trace_topic

    def has(self, account: Account, need: Need) -> bool:
        kind, name, permission, _ = need
        if kind is Kind.ADMINISTRATOR:
            return account.is_admin
        if kind is Kind.GROUP:
            return bool(account.of_group(name) & permission)
        if kind is Kind.RETRIES:
            return self._may_use_retries(account, name)
        if kind is Kind.POP_RETRIES:
            return self._may_pop_retries(account, name)
        if kind is Kind.TOPIC_BY_NAME or name == self._trace_topic:
            # Every client may write traces, whatever its other permissions are.
            return permission == PUB or bool(account.of_named_topic(name) & permission)
        return bool(account.of_topic(name) & permission)

    def _may_use_retries(self, account: Account, name: str) -> bool:
        group, plus, topic = name.partition("+")
        if plus:
            return self._may_consume(account, group, topic)
        if not account.of_group(name) & SUB:
            return False
        return name in account.groups or all(
            self._may_consume(account, *meant) for meant in self._meanings(name)
        )

    def _may_pop_retries(self, account: Account, name: str) -> bool:
        """`name` is "group/topic"; the account may consume both already."""
        group, _, topic = name.partition("/")
        if group in account.groups and topic in account.topics:
            return True
        joined = f"{group}_{topic}"
        if self._is_group(joined) and not account.of_group(joined) & SUB:
            return False
        return all(self._may_consume(account, *meant) for meant in self._meanings(joined))

    def _may_consume(self, account: Account, group: str, topic: str) -> bool:
        return bool(account.of_group(group) & SUB) and self.has(account, topic_need(topic, SUB))

    def _meanings(self, name: str) -> Iterator[tuple[str, str]]:
        """Pairs of group and topic whose names, joined by "_", are this name."""
        # Only the end of a long name can be a topic: trying all splits would be quadratic.
        at = name.find("_", max(len(name) - TOPIC_NAME_BYTES_MAX - 1, 0))
        while at >= 0:
            topic = name[at + 1 :]
            if at and topic and self._is_topic(topic) and self._is_group(name[:at]):
                yield name[:at], topic
            at = name.find("_", at + 1)
