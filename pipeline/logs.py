"""Structured logs on standard error: one event, then its fields.

    log = get_logger(__name__)
    log.info("window published", node=node, rows=12)
    log.warning("record refused", per=(topic, reason), topic=topic, offset=7)

Of events with the same text and the same `per` the first is logged, then one a minute. It has the
number of the others in the field `suppressed`. Whatever a hostile producer can cause has `per`.

A terminal gets readable lines, other streams get JSON lines. Logs of aiokafka, Faust and aiohttp
have the same format, because all use the standard library. Secrets print as stars (`Secret`).
JSON lines also have `CONTEXT_FIELDS`.
"""

import json
import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final, TextIO

from pipeline.times import format_time

_STANDARD_ARGUMENTS = frozenset({"exc_info", "stack_info", "stacklevel", "extra"})

# Rate-limited per message, because a client without a broker logs up to 2,800 reconnects a second.
NOISY_LOGGERS = ("aiokafka", "kafka", "mode", "faust", "asyncio")
# A planner that catches up names the partitions that it reads in two lines a second.
SUBSCRIPTIONS: Final = "aiokafka.consumer.subscription_state"
NOISY_BURST = 10
NOISY_PERIOD_SECONDS = 10.0
PER_PERIOD_SECONDS = 60.0
_MOST_LIMITED = 1000

CONTEXT_FIELDS: Final[ContextVar[Mapping[str, object]]] = ContextVar(
    "context_fields", default=MappingProxyType({})
)
"""Fields of every JSON line that is logged in the present context, such as the id of a trace."""


class FieldLogger(logging.LoggerAdapter[logging.Logger]):
    """A standard logger whose keyword arguments become fields of the event."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        fields = {
            name: kwargs.pop(name) for name in list(kwargs) if name not in _STANDARD_ARGUMENTS
        }
        per = fields.pop("per", None)
        fields = {**(self.extra or {}), **fields}
        kwargs["extra"] = {**kwargs.get("extra", {}), "fields": fields, "per": per}
        return msg, kwargs


def get_logger(name: str, **fields: object) -> FieldLogger:
    """Return the logger of a module; `fields` are added to every event."""
    return FieldLogger(logging.getLogger(name), fields)


def configure_logging(
    level: str = "info", format: str = "auto", *, stream: TextIO | None = None
) -> None:
    """Send all logs of this process to `stream` (default: standard error). May be called again.

    `format` is `human`, `json` or `auto`: human if the stream is a terminal.
    """
    stream = stream or sys.stderr
    human = format == "human" or (format == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(HumanFormatter() if human else JsonFormatter())
    handler.addFilter(RateLimit())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    of_subscriptions = root.level if level == "debug" else max(root.level, logging.WARNING)
    logging.getLogger(SUBSCRIPTIONS).setLevel(of_subscriptions)
    logging.captureWarnings(True)


class JsonFormatter(logging.Formatter):
    """Formats a line of JSON: time, level, logger, event, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": format_time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        for name, value in _fields(record).items():
            line[name if name not in line else f"{name}_"] = _json_value(value)
        for name, value in CONTEXT_FIELDS.get().items():
            line.setdefault(name, value)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class HumanFormatter(logging.Formatter):
    """`21:04:05 warning node_exporter.publisher  broker is away  buffered=7`."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = "".join(f"  {name}={_quoted(value)}" for name, value in _fields(record).items())
        line = f"{clock} {record.levelname.lower():7} {record.name}  {record.getMessage()}{fields}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class RateLimit(logging.Filter):
    """Passes `NOISY_BURST` records per message of a noisy logger in each period, and one a minute
    per message and `per` of others that have it. Drops further ones.

    The first record of the next period has the number of dropped ones in the field `suppressed`.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        # (logger, level, template, per) -> start of the period, passed, dropped. Bounded by the
        # number of log calls: templates, not texts, and topics and reasons.
        self._seen: dict[tuple[str, int, str, object], tuple[float, int, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        per = getattr(record, "per", None)
        if record.name.split(".", 1)[0] in NOISY_LOGGERS:
            most, period_seconds = NOISY_BURST, NOISY_PERIOD_SECONDS
        elif per is not None:
            most, period_seconds = 1, PER_PERIOD_SECONDS
        else:
            return True
        key = (record.name, record.levelno, str(record.msg)[:80], per)
        if key not in self._seen and len(self._seen) >= _MOST_LIMITED:
            self._seen.clear()
        now = self._monotonic()
        start, passed, dropped = self._seen.get(key, (now, 0, 0))
        if now - start >= period_seconds:
            if dropped:
                record.__dict__["fields"] = {**_fields(record), "suppressed": dropped}
            start, passed, dropped = now, 0, 0
        if passed < most:
            self._seen[key] = (start, passed + 1, dropped)
            return True
        self._seen[key] = (start, passed, dropped + 1)
        return False


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}


def _json_value(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bytes):
        return value[:256].decode("utf-8", "backslashreplace")
    return value


def _quoted(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else str(_json_value(value))
    needs_quotes = not text or any(c in ' "=' or not c.isprintable() for c in text)
    return json.dumps(text, ensure_ascii=False) if needs_quotes else text
