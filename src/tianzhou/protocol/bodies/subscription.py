"""A subscription: what a consumer wants of a topic."""

from msgspec import field

from tianzhou.protocol.bodies.codec import Body
from tianzhou.protocol.integers import Int32, Int64


class SubscriptionData(Body, frozen=True, kw_only=True):
    """One topic and its filter, as consumers send it in heartbeats."""

    class_filter_mode: bool = False
    topic: str | None = None
    expression: str | None = field(default=None, name="subString")
    tags: list[str] = field(default=[], name="tagsSet")
    tag_codes: list[Int32] = field(default=[], name="codeSet")
    """Java hash codes of the tags."""
    version: Int64 = field(default=0, name="subVersion")
    expression_type: str = "TAG"
