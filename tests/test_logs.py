"""Logs: fields, formats, and libraries that say too much."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from pipeline.errors import InvalidRecordError, RecordError, UnreadableRecordError
from pipeline.kafka.refused_records import REFUSED, refuse
from pipeline.logs import NOISY_BURST, SUBSCRIPTIONS, RateLimit, configure_logging, get_logger
from pipeline.settings import Secret
from tests.metric_values import sum_of


@pytest.fixture(autouse=True)
def keep_root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger(SUBSCRIPTIONS).setLevel(logging.NOTSET)
    logging.captureWarnings(False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def logged(format: str, *, level: str = "info", stream: io.StringIO | None = None) -> io.StringIO:
    stream = stream or io.StringIO()
    configure_logging(level, format, stream=stream)
    return stream


def test_pipe_gets_json_lines() -> None:
    stream = logged("auto")
    get_logger("a", role="worker", node="n-1").info("window applied", rows=7, cpu=float("nan"))
    get_logger("a").warning("two\nlines")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "info", "logger": "a", "event": "window applied", "role": "worker", "node": "n-1",
        "rows": 7, "cpu": None,
    }  # fmt: skip
    assert second["event"] == "two\nlines"


def test_terminal_gets_readable_lines() -> None:
    stream = logged("auto", stream=Terminal())
    get_logger("a").warning("broker is away", buffered=7, why="no route", share=1 / 3)
    assert stream.getvalue()[9:] == (
        'warning a  broker is away  buffered=7  why="no route"  share=0.333333\n'
    )


def test_both_formats_contain_tracebacks() -> None:
    for format in ("json", "human"):
        stream = logged(format)
        try:
            raise ValueError("inner")
        except ValueError:
            get_logger("a").exception("failed", node="n")
        assert "ValueError: inner" in stream.getvalue()


def test_later_configuration_replaces_level_and_handler() -> None:
    logged("json")
    stream = logged("json", level="warning")
    get_logger("a").info("not shown")
    logging.getLogger("a.library").warning("from a library: %s", 5)
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == [
        "from a library: 5"
    ]


def test_fields_do_not_overwrite_the_event_and_bytes_are_readable() -> None:
    stream = logged("json")
    get_logger("a").info("it", logger="x", key=b"\xffn", when=object)
    line = json.loads(stream.getvalue())
    assert (line["event"], line["logger"], line["logger_"], line["key"]) == (
        "it", "a", "x", "\\xffn",
    )  # fmt: skip


def test_secret_prints_as_stars() -> None:
    for format in ("json", "human"):
        stream = logged(format)
        get_logger("a").info("connecting %s", Secret("hunter2"), password=Secret("hunter2"))
        assert "hunter2" not in stream.getvalue()
        assert stream.getvalue().count("***") == 2


@pytest.mark.parametrize(
    ("level", "shown"),
    [("debug", ["info", "warning"]), ("info", ["warning"]), ("error", [])],
)
def test_subscriptions_are_named_in_debug_logs_alone(level: str, shown: list[str]) -> None:
    stream = logged("json", level=level)
    library = logging.getLogger(SUBSCRIPTIONS)
    library.info("Updating subscribed topics to: windows")
    library.warning("something is wrong")
    assert [json.loads(line)["level"] for line in stream.getvalue().splitlines()] == shown


def test_noisy_library_is_rate_limited_with_a_count() -> None:
    now = [0.0]
    limit = RateLimit(monotonic=lambda: now[0])

    def offered(name: str, number: int) -> bool | logging.LogRecord:
        record = logging.LogRecord(name, logging.ERROR, "", 1, "no broker at %d", (number,), None)
        return record if limit.filter(record) else False

    assert sum(bool(offered("aiokafka.conn", n)) for n in range(2800)) == NOISY_BURST
    assert sum(bool(offered("pipeline.agents", n)) for n in range(50)) == 50
    now[0] = 10.0
    record = offered("aiokafka.conn", 1)
    assert isinstance(record, logging.LogRecord)
    assert record.__dict__["fields"] == {"suppressed": 2800 - NOISY_BURST}
    # Another message of the same library is not drowned by the first.
    other = logging.LogRecord("aiokafka.conn", logging.ERROR, "", 1, "other", None, None)
    assert limit.filter(other)


def test_a_flood_of_refused_records_is_logged_once_a_minute_with_a_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(RateLimit.__init__, "__defaults__", (lambda: now[0],))
    stream = logged("json")

    def flood(source: str, error: RecordError, count: int) -> None:
        for offset in range(count):
            refuse(source, error, partition=1, offset=offset)

    invalid, unreadable = InvalidRecordError("x" * 10_000), UnreadableRecordError("garbled")
    before = sum_of(REFUSED, source="flooded")
    flood("flooded", invalid, 5000)
    flood("flooded", unreadable, 10)
    flood("other", invalid, 10)
    now[0] = 59.0
    flood("flooded", invalid, 10)
    now[0] = 60.0
    flood("flooded", invalid, 10)
    assert sum_of(REFUSED, source="flooded") == before + 5030
    assert sum_of(REFUSED, source="flooded", reason="unreadable") >= 10
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    fields = "source", "reason", "offset", "suppressed"
    assert [[line.get(field) for field in fields] for line in lines] == [
        ["flooded", "invalid", 0, None],
        ["flooded", "unreadable", 0, None],
        ["other", "invalid", 0, None],
        ["flooded", "invalid", 0, 5009],
    ]
    assert len(stream.getvalue()) < 3000


def test_reasons_that_a_producer_makes_up_are_bounded_in_memory() -> None:
    limit = RateLimit()
    for number in range(5000):
        record = logging.LogRecord("pipeline.a", logging.WARNING, "", 1, "refused", None, None)
        record.per = number
        assert limit.filter(record)
    assert len(limit._seen) <= 1000
