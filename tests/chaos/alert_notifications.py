"""What a real Alertmanager notified of, against the alerts of the topic."""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, NamedTuple

import msgspec

from pipeline.times import parse_time
from pipeline.topics.alerts import AlertRecord

_SUBJECTS: Final = ("node", "workload", "pool")


class Alert(NamedTuple):
    """An alert of Alertmanager: one of another severity is another one."""

    subject: str
    rule: str
    severity: str
    since: float


class _Notified(msgspec.Struct):
    status: str
    labels: dict[str, str]
    starts_at: str = msgspec.field(name="startsAt")


class _Body(msgspec.Struct):
    alerts: list[_Notified]


class Notifications:
    """How often each alert was notified as firing, and as resolved, at `url`."""

    def __init__(self) -> None:
        self.firing: Counter[Alert] = Counter()
        self.resolved: Counter[Alert] = Counter()
        self.url = ""

    def take(self, body: bytes) -> None:
        """Count the alerts of a request of Alertmanager."""
        for each in msgspec.json.decode(body, type=_Body).alerts:
            subject = next(each.labels[name] for name in _SUBJECTS if name in each.labels)
            since = parse_time(each.starts_at)
            alert = Alert(subject, each.labels["rule"], each.labels["severity"], since)
            (self.firing if each.status == "firing" else self.resolved)[alert] += 1


@contextmanager
def notified() -> Iterator[Notifications]:
    """Take the notifications of an Alertmanager until the block ends."""
    notifications = Notifications()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            notifications.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    # In threads: what is not answered soon is notified again.
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        notifications.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield notifications
        finally:
            server.shutdown()
            thread.join()


def notification_problems(
    records: Sequence[AlertRecord], notifications: Notifications, away: tuple[float, float]
) -> Iterator[str]:
    """Yield alerts of the topic that were lost, repeated, or not ended once. Of an alert that
    opened and closed while the notifier was `away` (Unix times) nobody need have heard."""
    begun = Counter[Alert]()
    is_open = set[Alert]()
    for name, changes in _changes(records).items():
        states = [_alert(each) for each in changes if each.transition != "closed"]
        begun.update(states)
        newest = changes[-1]
        if newest.transition != "closed":
            is_open.add(_alert(newest))
        ended_at = parse_time(newest.since) + newest.duration_seconds
        was_missed = newest.transition == "closed" and (
            away[0] <= parse_time(newest.since) and ended_at <= away[1]
        )
        if not was_missed and not any(state in notifications.firing for state in states):
            yield f"{name}: not notified"
    for alert in is_open - notifications.firing.keys():
        yield f"{alert}: is open, and was not notified"
    for alert, count in notifications.firing.items():
        if count > begun[alert]:
            yield f"{alert}: notified {count} times, and began {begun[alert]} times"
        ends, expected = notifications.resolved[alert], count - (alert in is_open)
        if ends != expected:
            yield f"{alert}: ended {ends} times instead of {expected}"


def _changes(records: Sequence[AlertRecord]) -> dict[str, list[AlertRecord]]:
    """The changes of each alert in their order, each once: planners repeat records."""
    found: dict[str, dict[tuple[int, int], AlertRecord]] = defaultdict(dict)
    for record in records:
        found[record.id][record.generation, record.offset] = record
    return {name: [each[place] for place in sorted(each)] for name, each in found.items()}


def _alert(record: AlertRecord) -> Alert:
    subject = record.node or record.workload or record.pool
    return Alert(subject, record.rule, record.severity, parse_time(record.since))
