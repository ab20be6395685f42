"""An independent reader of what `springtide explain` prints: it knows the text and nothing else.

Every step is computed again in float64, every sum from the lines above it, and whatever a step uses
must be a number of the record or a result printed before it. It imports nothing of the product.
"""

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

CONSTANTS = {0.0, 1.0, 100.0, 1000.0}
"""Numbers that need no origin: nothing, one, a hundred percent, millicores of a core."""

_NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_ENDS = re.compile(rf"(?:^|: |= )({_NUMBER})(?: [^\s:=]+)?$")
_TOKEN = re.compile(rf"\s*({_NUMBER}|[a-z]+|\*\*|[-+*/(),])")
_SUM = re.compile(r", sum of (\d+): ")


class Checked(NamedTuple):
    """What was found right: steps and sums by their label, with their value."""

    steps: list[tuple[str, float]]
    sums: list[tuple[str, float]]


def numbers(document: Any) -> set[float]:
    """Every number in a JSON document; of cores also the whole millicores."""
    if isinstance(document, dict):
        document = [*document.values()]
    if isinstance(document, list):
        return set().union(*map(numbers, document))
    if isinstance(document, bool) or not isinstance(document, int | float):
        return set()
    return {float(document), float(round(document * 1000))}


def check(lines: list[str], inputs: set[float]) -> Checked:
    """Compute every line again; AssertionError names the first that does not hold."""
    actual, known, before = Checked([], []), CONSTANTS | inputs, list[float]()
    for line in lines:
        text = line.strip()
        if not text:
            continue
        value = _value(text)
        if value is None:
            before.clear()
            continue
        if summed := _SUM.search(text):
            count = int(summed[1])
            assert count <= len(before), f"{count} lines are to be added: {line}"
            total = 0.0
            for addend in before[len(before) - count :]:
                total += addend
            assert total == value, f"{line}: the lines above come to {total!r}"
            actual.sums.append((text[: summed.start()], value))
            before.clear()
        elif " = " in text:
            label, _, rest = text.rpartition(": ")
            expression = rest.rpartition(" = ")[0]
            reader = _Reader(expression)
            assert reader.value == value, f"{line}: it is {reader.value!r}"
            strange = reader.numbers - known
            assert not strange, f"{line}: nobody said where {strange} come from"
            actual.steps.append((label, value))
        else:
            assert value in known, f"{line}: this is not in the record"
        before.append(value)
        known.add(value)
    return actual


def _value(text: str) -> float | None:
    """The number that a line ends with, before its unit."""
    if "unknown: " in text or text.endswith(":"):
        return None
    match = _ENDS.search(text)
    return None if match is None else float(match[1])


class _Reader:
    """The value of an expression by recursive descent, and the numbers in it."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self.numbers: set[float] = set()
        self.value = self._sum()
        assert not self._tokens, f"{text}: {self._tokens} is left over"

    def _next(self) -> str:
        return self._tokens[0] if self._tokens else ""

    def _sum(self) -> float:
        value = self._product()
        while self._next() in ("+", "-"):
            sign = self._tokens.pop(0)
            right = self._product()
            value = value + right if sign == "+" else value - right
        return value

    def _product(self) -> float:
        value = self._power()
        while self._next() in ("*", "/"):
            sign = self._tokens.pop(0)
            right = self._power()
            value = value * right if sign == "*" else value / right
        return value

    def _power(self) -> float:
        value = self._atom()
        if self._next() == "**":
            self._tokens.pop(0)
            value = math.pow(value, self._power())
        return value

    def _atom(self) -> float:
        token = self._tokens.pop(0)
        if token == "(":
            value = self._sum()
            assert self._tokens.pop(0) == ")"
            return value
        if token in ("min", "max", "trunc"):
            return self._call(token)
        self.numbers.add(float(token))
        return float(token)

    def _call(self, name: str) -> float:
        assert self._tokens.pop(0) == "("
        values = [self._sum()]
        while self._next() == ",":
            self._tokens.pop(0)
            values.append(self._sum())
        assert self._tokens.pop(0) == ")"
        if name == "trunc":
            (value,) = values
            return float(math.trunc(value))
        return {"min": min, "max": max}[name](values)


def _tokens(text: str) -> Iterator[str]:
    at, before = 0, "("
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match, f"{text!r} at {at}"
        token = match[1]
        if (
            token[0] == "-"
            and len(token) > 1
            and before not in ("(", ",", "+", "-", "*", "**", "/")
        ):
            token = "-"
        before = token
        yield token
        at = match.start(1) + len(token)
