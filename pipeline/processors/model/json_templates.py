"""Encode many records of one type as JSON, by column.

A record type declares once the constant texts between its values (`Template`); the texts of the
values are made for a whole column at once, because objects for each value would take most of the
time of a window. The result has the bytes of `encode_json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec
import numpy as np
import numpy.typing as npt

_json: Final = msgspec.json.Encoder(order="deterministic")

VALUE: Final = cast(Any, "\0")
"""Stands for a value in the record that a `Template` is made of."""
_VALUE_TEXT: Final = _json.encode(VALUE)


class Template:
    """The texts before, between and after the values of a record, in the order of its JSON."""

    def __init__(self, record: object) -> None:
        self.texts = _json.encode(record).split(_VALUE_TEXT)

    def fill(self, values: Sequence[bytes]) -> bytes:
        """The JSON of a record with these values, one for each `VALUE`."""
        pieces = [b""] * (len(self.texts) + len(values))
        pieces[0::2] = self.texts
        pieces[1::2] = values
        return b"".join(pieces)


def number_texts(numbers: npt.NDArray[np.generic]) -> list[bytes]:
    """The JSON of each number of an array of any shape; `null` where it is not finite."""
    return _json.encode(numbers.ravel().tolist())[1:-1].split(b",") if numbers.size else []


def string_texts(strings: Sequence[str]) -> list[bytes]:
    """The JSON of each string."""
    texts = _json.encode(strings)[1:-1].split(b",") if strings else []
    # A comma in a string splits it.
    return texts if len(texts) == len(strings) else [_json.encode(text) for text in strings]


def raw(text: bytes) -> Any:
    """JSON as the value of a field of any type."""
    return msgspec.Raw(text)
