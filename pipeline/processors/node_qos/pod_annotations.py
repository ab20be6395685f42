"""Rules of quality of service that the annotations of a pod add to those of its node."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, TypeVar

import msgspec

from pipeline.processors.policy.slo_checks import problems_of
from pipeline.processors.slo.crd_fields import Document

LONGEST_TEXT: Final = 16_384

T = TypeVar("T", bound=Document)


def read_annotation(annotations: Mapping[str, str], name: str, kind: type[T]) -> T | None:
    """The document in an annotation; None if there is none, or an invalid one.

    Invalid is also a value that the same field of a NodeSLO may not have.
    """
    text = annotations.get(name)
    return None if text is None or len(text) > LONGEST_TEXT else _read(text, kind)


@lru_cache(maxsize=512)
def _read(text: str, kind: type[T]) -> T | None:
    try:
        document = msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return None if any(problems_of(document)) else document
