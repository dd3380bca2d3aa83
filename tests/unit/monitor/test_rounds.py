"""Observations create alarms and notices, on both databases; no notice is lost."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from sqlalchemy import Engine

from tianzhou.monitor import tables
from tianzhou.monitor.rounds import Observation, deliver, update_alarms
from tianzhou.monitor.rules import Rule

MINUTE = 60_000
FALLBACK = Rule(100)


def round_of(
    engine: Engine, minute: int, *seen: Observation, cluster: str = "c"
) -> list[tuple[str, str, int]]:
    """Run one round; returns the new notices."""
    with engine.begin() as connection:
        before = len(tables.rows_of(connection, tables.alarm_events))
        update_alarms(connection, cluster, "backlog", seen, FALLBACK, minute * MINUTE)
        rows = tables.rows_of(connection, tables.alarm_events)
    new = sorted(rows, key=lambda row: row.id)[before:]
    return [(row.consumer_group, row.event, row.value) for row in new]


def test_rounds_open_repeat_and_recover(engine: Engine) -> None:
    assert round_of(engine, 0, Observation("g", "t", 101), Observation("h", "t", 100)) == [
        ("g", "open", 101)
    ]
    assert round_of(engine, 1, Observation("g", "t", 200)) == []
    assert round_of(engine, 10, Observation("g", "t", 300)) == [("g", "repeat", 300)]
    with engine.connect() as connection:
        (alarm,) = tables.rows_of(connection, tables.alarms)
    assert (alarm.is_open, alarm.value, alarm.threshold, alarm.told_count) == (1, 300, 100, 2)
    # A deleted group has no backlog.
    assert round_of(engine, 11) == [("g", "recovered", 0)]
    assert round_of(engine, 12) == []


def test_rules_are_read_from_the_table_and_can_be_disabled(engine: Engine) -> None:
    rules = [
        {"tenant": "A", "kind": "backlog", "consumer_group": "A_*", "threshold": 5, "window_s": 60},
        {"tenant": "A", "kind": "dlq", "consumer_group": "A_*", "threshold": 1, "window_s": 60},
        {"tenant": "B", "kind": "backlog", "threshold": 1, "window_s": 60, "enabled": 0},
    ]
    with engine.begin() as connection:
        for rule in rules:
            connection.execute(tables.alarm_rules.insert().values(rule))
    seen = Observation("A_pay", "t", 0, {60: 6, 600: 70}), Observation("other", "t", 50)
    assert round_of(engine, 0, *seen) == [("A_pay", "open", 6)]
    with engine.connect() as connection:
        (alarm,) = tables.rows_of(connection, tables.alarms)
    assert (alarm.tenant, alarm.threshold) == ("A", 5)


def test_a_notice_is_retried_until_it_is_delivered(engine: Engine) -> None:
    answers = [500, 200]
    received: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(answers.pop(0))
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/"
        round_of(engine, 0, Observation("g", "t", 101))
        assert [deliver(engine, "c", url, minute * MINUTE) for minute in range(3)] == [0, 1, 0]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert len(received) == 2
    with engine.connect() as connection:
        (event,) = tables.rows_of(connection, tables.alarm_events)
    assert (event.try_count, event.told_ms) == (1, MINUTE)


def test_equal_names_of_two_clusters_are_apart(engine: Engine) -> None:
    assert round_of(engine, 0, Observation("g", "t", 101), cluster="production")
    assert round_of(engine, 1, cluster="staging") == []
    assert round_of(engine, 2, Observation("g", "t", 0), cluster="staging") == []
    assert round_of(engine, 3, Observation("g", "t", 0), cluster="production") == [
        ("g", "recovered", 0)
    ]
    with engine.connect() as connection:
        found = tables.rows_of(connection, tables.alarm_events)
    assert {row.cluster for row in found} == {"production"}
    assert deliver(engine, "staging", "log", MINUTE) == 0
    assert deliver(engine, "production", "log", MINUTE) == 2


def test_a_tenant_is_not_notified_of_groups_of_another_one(engine: Engine) -> None:
    rules = [
        {"tenant": "PAY", "kind": "backlog", "threshold": 1, "window_s": 60},
        {"tenant": "TRADE", "kind": "dlq", "threshold": 1, "window_s": 60},
    ]
    with engine.begin() as connection:
        for rule in rules:
            connection.execute(tables.alarm_rules.insert().values(rule))
    seen = Observation("TRADE_billing", "TRADE_t", 50), Observation("PAY_a", "TRADE_t", 50)
    assert round_of(engine, 0, *seen) == [("PAY_a", "open", 50)]


def test_a_rule_of_a_cluster_holds_there_only(engine: Engine) -> None:
    with engine.begin() as connection:
        rule = {"cluster": "production", "kind": "backlog", "threshold": 1}
        connection.execute(tables.alarm_rules.insert().values(rule))
    assert round_of(engine, 0, Observation("g", "t", 50), cluster="staging") == []
    assert round_of(engine, 0, Observation("g", "t", 50), cluster="production") != []


def test_a_channel_that_has_a_notice_does_not_get_it_again(engine: Engine) -> None:
    answers = {"/a": [200, 200], "/b": [500, 500, 200]}
    received: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            received.append(self.path)
            self.send_response(answers[self.path].pop(0))
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        round_of(engine, 0, Observation("g", "t", 101))
        both = f"{url}/b {url}/a"
        assert [deliver(engine, "c", both, minute * MINUTE) for minute in range(4)] == [0, 0, 1, 0]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert received == ["/b", "/a", "/b", "/b"]
    with engine.connect() as connection:
        found = tables.rows_of(connection, tables.deliveries)
    assert sorted((row.tries, row.delivered_ms) for row in found) == [(0, 0), (2, 2 * MINUTE)]
