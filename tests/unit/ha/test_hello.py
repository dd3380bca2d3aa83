"""The hello: what a master refuses, what a slave refuses, and what both are told to do."""

from dataclasses import replace

import pytest

from tianzhou.errors import ProtocolError, ReplicationError
from tianzhou.ha.epochs import Epoch
from tianzhou.ha.hello import (
    Broker,
    LogState,
    Offer,
    PortTls,
    make_request,
    make_response,
    needs_tls,
    problem_with,
    read_request,
    read_response,
    refusal_of,
)
from tianzhou.ha.log_tail import Tail
from tianzhou.protocol import headers
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command

MASTER = Broker(cluster="c", name="broker-a", id=0, store_id="0" * 32)
SLAVE = Broker(cluster="c", name="broker-a", id=1, store_id="1" * 32)
THEIRS = LogState(
    first_offset=4096, end_offset=20_000, file_bytes=4096, epochs=(Epoch(1, 0), Epoch(2, 9000))
)
EMPTY = LogState(first_offset=0, end_offset=0, file_bytes=4096)
OWN = LogState(
    first_offset=4096, end_offset=8000, file_bytes=4096, epochs=(Epoch(1, 0),), is_flushed=True
)
AHEAD = replace(OWN, end_offset=20_100, epochs=THEIRS.epochs)
DIVERGED = replace(OWN, end_offset=9500)
GAP = replace(OWN, first_offset=0, end_offset=4000)
TOKEN = bytes(range(16))


def refused(own: LogState, broker: Broker = SLAVE) -> str | None:
    return refusal_of(read_request(make_request(broker, own, "1.0")), MASTER, THEIRS)


def problem(own: LogState) -> str | None:
    response = make_response(THEIRS, token=TOKEN, ha_port=10912)
    return problem_with(read_response(Command(code=0, ext_fields=headers.encode(response))), own)


def test_the_request_says_which_log_it_is() -> None:
    request = make_request(SLAVE, replace(OWN, tail=Tail(9, 7)), "1.0")
    assert request.code == RequestCode.HA_HELLO
    assert request.fields == {
        "cluster": "c", "brokerName": "broker-a", "brokerId": "1", "storeId": "1" * 32,
        "endOffset": "8000", "epochs": "1-0", "logFileBytes": "4096", "isFlushed": "true",
        "version": "1.0", "tailBytes": "9", "tailCrc": "7",
    }  # fmt: skip


def test_an_empty_log_has_no_end_and_no_epochs() -> None:
    begun = replace(OWN, first_offset=8192, end_offset=8192)
    header = read_request(make_request(SLAVE, begun, ""))
    assert (header.end_offset, header.epochs) == (0, "")


def test_the_response_has_the_masters_log_and_the_token() -> None:
    response = make_response(THEIRS, token=TOKEN, ha_port=10912)
    offer = read_response(Command(code=0, ext_fields=headers.encode(response)))
    assert (offer.token, offer.ha_port, offer.log) == (TOKEN, 10912, THEIRS)
    assert response.epoch == 2


@pytest.mark.parametrize("own", [EMPTY, OWN, replace(OWN, end_offset=9000)])
def test_a_log_that_is_the_beginning_of_the_masters_is_accepted(own: LogState) -> None:
    assert refused(own) is None
    assert problem(own) is None


@pytest.mark.parametrize(
    ("own", "words"),
    [
        pytest.param(replace(OWN, file_bytes=8192), ["4096", "8192", "set it to 4096"], id="sizes"),
        pytest.param(AHEAD, ["20100", "20000", "100 bytes", "promote the slave"], id="ahead"),
        pytest.param(
            DIVERGED, ["up to 9000", "9500", "move the slave's store away"], id="diverged"
        ),
        pytest.param(GAP, ["4000", "4096", "expired"], id="gap"),
    ],
)
def test_a_log_that_cannot_follow_is_refused_on_both_sides(own: LogState, words: list[str]) -> None:
    for text in (refused(own), problem(own)):
        assert text is not None
        assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(
    ("broker", "words"),
    [
        (replace(SLAVE, cluster="d"), ["cluster c", "cluster d"]),
        (replace(SLAVE, name="broker-b"), ["broker-a", "broker-b"]),
        (replace(SLAVE, id=0), ["brokerId=0", "1 or more"]),
    ],
)
def test_another_group_and_the_id_of_a_master_are_refused(broker: Broker, words: list[str]) -> None:
    text = refused(EMPTY, broker)
    assert text is not None
    assert [word for word in words if word not in text] == []


def test_a_master_with_an_empty_disk_refuses_its_slave() -> None:
    header = read_request(make_request(SLAVE, OWN, ""))
    new_disk = LogState(first_offset=0, end_offset=0, file_bytes=4096, epochs=(Epoch(1, 0),))
    text = refusal_of(header, MASTER, new_disk)
    assert text is not None
    assert "promote the slave" in text


@pytest.mark.parametrize(
    "fields",
    [
        {"token": ""},
        {"token": "00" * 15},
        {"token": "zz" * 16},
        {"haPort": "0"},
        {"haPort": "65536"},
        {"firstOffset": "9"},
        {"epochs": "x"},
        {"logFileBytes": "many"},
    ],
)
def test_a_response_that_makes_no_sense_is_an_error(fields: dict[str, str]) -> None:
    log = replace(THEIRS, first_offset=0, end_offset=8)
    whole = headers.encode(make_response(log, token=TOKEN, ha_port=1))
    with pytest.raises(ProtocolError):
        read_response(Command(code=0, ext_fields=whole | fields))


@pytest.mark.parametrize("fields", [{"epochs": "1-0,1-0"}, {"endOffset": "-1"}])
def test_a_request_that_makes_no_sense_is_an_error(fields: dict[str, str]) -> None:
    whole = dict(make_request(SLAVE, OWN, "").fields)
    with pytest.raises(ProtocolError):
        refusal_of(read_request(Command(code=1, ext_fields=whole | fields)), MASTER, THEIRS)


@pytest.mark.parametrize("field", ["cluster", "brokerName", "storeId", "group"])
def test_a_request_with_long_names_is_an_error(field: str) -> None:
    whole = dict(make_request(SLAVE, OWN, "").fields)
    read_request(Command(code=1, ext_fields=whole | {field: "x" * 255}))
    with pytest.raises(ProtocolError, match="256 characters"):
        read_request(Command(code=1, ext_fields=whole | {field: "x" * 256}))


# -- TLS of the HA port ----------------------------------------------------------------------------


def offer_with(ha_tls: PortTls) -> Offer:
    response = make_response(THEIRS, token=TOKEN, ha_port=1, ha_tls=ha_tls)
    return read_response(Command(code=0, ext_fields=headers.encode(response)))


@pytest.mark.parametrize("ha_tls", list(PortTls))
def test_a_slave_with_tls_never_speaks_plain_text(ha_tls: PortTls) -> None:
    if ha_tls is PortTls.NONE:
        with pytest.raises(ReplicationError, match="useTLS=false here"):
            needs_tls(offer_with(ha_tls), speaks_tls=True)
    else:
        assert needs_tls(offer_with(ha_tls), speaks_tls=True)


@pytest.mark.parametrize("ha_tls", list(PortTls))
def test_a_slave_without_tls_is_refused_where_it_is_enforced(ha_tls: PortTls) -> None:
    if ha_tls is PortTls.REQUIRED:
        with pytest.raises(ReplicationError, match="useTLS=true here"):
            needs_tls(offer_with(ha_tls), speaks_tls=False)
    else:
        assert not needs_tls(offer_with(ha_tls), speaks_tls=False)


def test_unknown_tls_of_the_port_is_refused() -> None:
    response = headers.encode(make_response(THEIRS, token=TOKEN, ha_port=1))
    with pytest.raises(ReplicationError, match="'some'"):
        read_response(Command(code=0, ext_fields=response | {"haTls": "some"}))
