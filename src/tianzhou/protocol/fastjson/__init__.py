"""The JSON of RocketMQ's bodies: what fastjson writes and reads, which is not quite JSON.

RocketMQ 4.9 and the first releases of 5.x use fastjson 1, 5.5 uses fastjson 2. Both write map keys
that are not strings as they are, so a body may read

    {"brokerAddrs":{0:"10.0.0.1:10911"}}           integer keys without quotes
    {"offsetTable":{{"topic":"t","queueId":0}:1}}  objects as keys
    {"a":[1],"b":{"$ref":"$.a"}}                   fastjson 1: the second use of a shared object

`loads` reads strict JSON and all of these, and what else fastjson 1 accepts: single quotes, keys
without quotes, superfluous commas, comments, a byte order mark, control characters in strings,
numbers with a plus, leading zeros or one of Java's suffixes. It does not read Java expressions
(`new Date`, `Set[...]`, `x'00'`). Time and memory are linear in the size of the input; nesting is
limited.

`dumps` writes either dialect. Plain values become:

    object            dict; unquoted integer keys are int, all others str
    object as a key   ObjectKey, a dict that can be hashed
    array             list, as a key tuple
"""

from tianzhou.protocol.fastjson.reader import loads, quote_integer_keys
from tianzhou.protocol.fastjson.values import (
    DEPTH_LIMIT,
    EXPANSION_LIMIT,
    Json,
    ObjectKey,
    as_key,
    is_array,
    is_object,
)
from tianzhou.protocol.fastjson.writer import dumps, dumps_steps

__all__ = [
    "DEPTH_LIMIT",
    "EXPANSION_LIMIT",
    "Json",
    "ObjectKey",
    "as_key",
    "dumps",
    "dumps_steps",
    "is_array",
    "is_object",
    "loads",
    "quote_integer_keys",
]
