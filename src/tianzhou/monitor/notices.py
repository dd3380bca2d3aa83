"""Notices of alarms, in the language of their receiver."""

# ruff: noqa: RUF001 - Chinese punctuation

from dataclasses import dataclass

from tianzhou.errors import TianzhouError

LANGUAGES = ("en", "zh")
"""Languages of notices, the default first."""

TIMEOUT_S = 10.0

_KINDS = {
    "en": {"backlog": "backlog", "dlq": "dead letters"},
    "zh": {"backlog": "消息堆积", "dlq": "死信"},
}
_SUBJECTS = {
    ("en", "open"): "{what} of group {group} on topic {topic}: {value}, above {threshold}",
    ("en", "repeat"): (
        "{what} of group {group} on topic {topic}: {value}, above {threshold} (again)"
    ),
    ("en", "recovered"): "{what} of group {group} on topic {topic}: {value}, recovered {threshold}",
    ("zh", "open"): "消费组 {group} 在主题 {topic} 的{what}：{value}，超过阈值 {threshold}",
    ("zh", "repeat"): "消费组 {group} 在主题 {topic} 的{what}：{value}，仍超过阈值 {threshold}",
    ("zh", "recovered"): (
        "消费组 {group} 在主题 {topic} 的{what}：{value}，已恢复（阈值 {threshold}）"
    ),
}


class NoticeError(TianzhouError):
    """A notice was not delivered."""

    retriable = True


@dataclass(frozen=True, slots=True)
class Notice:
    """An event of an alarm."""

    kind: str
    """backlog or dlq."""
    event: str
    """open, repeat or recovered."""
    tenant: str
    group: str
    topic: str
    value: int
    threshold: int
    at_ms: int
    detail: str = ""

    def subject(self, language: str = LANGUAGES[0]) -> str:
        """A summary in one line."""
        text = _SUBJECTS[language, self.event]
        return text.format(
            what=_KINDS[language].get(self.kind, self.kind),
            group=self.group,
            topic=self.topic,
            value=self.value,
            threshold=self.threshold,
        )
