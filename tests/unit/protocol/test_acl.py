"""Signed requests, against signatures of the Java client."""

import json
from pathlib import Path

import pytest

from tianzhou.protocol import acl
from tianzhou.protocol.acl import Credentials, is_signed_with, sign, signature
from tianzhou.protocol.command import Command, decode

GOLDEN = Path(__file__).parents[2] / "golden"
# The account that the golden capture used (tests/apache/java/Scenario.java).
ACCOUNT = Credentials("golden-access", "golden-secret", "golden-token")


def signed_frames() -> list[Command]:
    frames = [
        decode(bytes.fromhex(json.loads(line)["hex"]))
        for path in sorted(GOLDEN.glob("frames-*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    return [frame for frame in frames if acl.SIGNATURE in frame.fields]


def test_signs_as_the_java_client() -> None:
    frames = signed_frames()
    assert len(frames) >= 8
    for frame in frames:
        given = dict(frame.fields)
        # Unsigned and signed requests both get the signature that Java computed.
        for start in (given, {k: v for k, v in given.items() if k != acl.SIGNATURE}):
            command = Command(code=frame.code, ext_fields=dict(start), body=frame.body)
            acl.sign(command, ACCOUNT)
            assert command.ext_fields == given


@pytest.mark.parametrize("fields", [None, {}])
def test_signs_a_request_without_fields(fields: dict[str, str] | None) -> None:
    command = Command(code=34, ext_fields=fields, body=b"{}")
    acl.sign(command, Credentials("a", "s"))
    assert command.fields[acl.ACCESS_KEY] == "a"
    assert acl.SECURITY_TOKEN not in command.fields
    assert command.fields[acl.SIGNATURE] == acl.signature({acl.ACCESS_KEY: "a"}, b"{}", "s")


def test_the_signature_depends_on_fields_body_and_secret() -> None:
    base = acl.signature({"a": "1", "b": "2"}, b"body", "secret")
    assert acl.signature({"b": "2", "a": "1"}, b"body", "secret") == base
    others = [
        acl.signature({"a": "1", "b": "3"}, b"body", "secret"),
        acl.signature({"a": "1", "b": "2"}, b"other", "secret"),
        acl.signature({"a": "1", "b": "2"}, b"body", "other"),
    ]
    assert base not in others


def test_secrets_are_not_shown() -> None:
    assert "golden-secret" not in repr(ACCOUNT)
    assert "golden-token" not in repr(ACCOUNT)


def test_ambiguous_signatures_are_those_of_the_security_page() -> None:
    """Stock clients sign this way; a stricter server would reject them."""
    secret, fields = "12345678", {"a": "one", "b": "two"}
    command = Command(code=1, ext_fields=fields, body=b"three", opaque=1)
    sign(command, Credentials("account", secret))
    another = Command(code=2, ext_fields=dict(command.fields), body=b"three", opaque=2)
    assert is_signed_with(another, secret), "neither the code nor the opaque is signed"
    for changed in ({"a": "onet", "b": "wo"}, {"a": "one", "bb": "two"}):
        assert signature(changed, b"three", secret) == signature(fields, b"three", secret)
    assert signature({"a": "one", "b": ""}, b"twothree", secret) == signature(
        fields, b"three", secret
    )


def test_a_changed_value_or_body_or_an_unknown_account_fails_verification() -> None:
    command = Command(code=1, ext_fields={"a": "one"}, body=b"body")
    sign(command, Credentials("account", "12345678"))
    assert is_signed_with(command, "12345678")
    assert not is_signed_with(command, "another-secret")
    assert not is_signed_with(command, None)
    for changed in (
        Command(code=1, ext_fields=dict(command.fields) | {"a": "two"}, body=b"body"),
        Command(code=1, ext_fields=dict(command.fields), body=b"bodY"),
    ):
        assert not is_signed_with(changed, "12345678")
