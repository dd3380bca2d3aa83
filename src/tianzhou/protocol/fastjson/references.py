"""References of fastjson 1: `{"$ref": path}` in place of an object that occurs more than once."""

import re
from typing import TypeGuard

from tianzhou.errors import BodyError
from tianzhou.protocol.fastjson.values import (
    DEPTH_LIMIT,
    EXPANSION_LIMIT,
    Json,
    containers_in,
    is_array,
    is_object,
    too_deep,
)

_STEP = re.compile(r"\.((?:\\.|[^.\[\\])*+)|\[(-?+[0-9]{1,10}+)\]", re.DOTALL)


def resolve_references(root: Json) -> Json:
    """Replace every {"$ref": path} by the object that it refers to.

    A path starts at the root ("$.a.b[0]"; a backslash stands before a special character of a key).
    One that leads nowhere is null, as fastjson has it. The short forms "$", "@" and ".." mean
    something around the reference; no body of RocketMQ contains itself, and we refuse it.
    """
    targets: dict[int, Json] = {}
    containers: list[Json] = [root] if is_object(root) or is_array(root) else []
    for container in containers:
        slots = container.items() if is_object(container) else enumerate(container)
        for key, item in list(slots):
            if _is_reference(item):
                container[key] = _target_of(root, item, targets, 0)
            elif is_object(item) or is_array(item):
                containers.append(item)
    if targets:
        _check_expansion(root)
    return root


def _is_reference(value: Json) -> TypeGuard[dict[str, str]]:
    return is_object(value) and len(value) == 1 and isinstance(value.get("$ref"), str)


def _target_of(root: Json, reference: dict[str, str], targets: dict[int, Json], depth: int) -> Json:
    if id(reference) in targets:
        return targets[id(reference)]
    path = reference["$ref"]
    if path in ("$", "@", ".."):
        raise _contains_itself()
    if not path.startswith("$") or depth > DEPTH_LIMIT:
        raise BodyError(f"reference {path[:60]!r} leads nowhere")
    # Until it is known, the target of a reference is null; so a ring of references ends.
    targets[id(reference)] = None
    value, at = root, 1
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            raise BodyError(f"reference {path[:60]!r} cannot be read at character {at}")
        value, at = _follow(value, step), step.end()
        if _is_reference(value):
            value = _target_of(root, value, targets, depth + 1)
    targets[id(reference)] = value
    return value


def _follow(value: Json, step: re.Match[str]) -> Json:
    if step[2] is not None:
        index = int(step[2])
        if is_array(value):
            return value[index] if 0 <= index < len(value) else None
        return value.get(index, value.get(step[2])) if is_object(value) else None
    if not is_object(value):
        return None
    name = re.sub(r"\\(.)", r"\1", step[1], flags=re.DOTALL)
    if name in value:
        return value[name]
    return value.get(int(name)) if re.fullmatch("-?[0-9]{1,19}", name) else None


def _check_expansion(root: Json) -> None:
    """Refuse a body that contains itself, or that its references make too deep or too large."""
    measures: dict[int, tuple[int, int]] = {}
    pending = {id(root)}
    stack = [(root, iter(containers_in(root)))]
    while stack:
        container, inner = stack[-1]
        for item in inner:
            if id(item) in pending:
                raise _contains_itself()
            if id(item) not in measures:
                pending.add(id(item))
                stack.append((item, iter(containers_in(item))))
                break
        else:
            measures[id(container)] = _measure(container, measures)
            pending.discard(id(container))
            stack.pop()


def _measure(container: Json, measures: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Values in the container at all levels, and how many levels there are."""
    size, height = len(container), 1
    for item in containers_in(container):
        inner_size, inner_height = measures[id(item)]
        size, height = size + inner_size, max(height, inner_height + 1)
    if height > DEPTH_LIMIT:
        raise too_deep()
    if size > EXPANSION_LIMIT:
        raise BodyError(f"references multiply the body beyond {EXPANSION_LIMIT} values")
    return size, height


def _contains_itself() -> BodyError:
    return BodyError("a reference makes the body contain itself")
