"""Read files that users name: bounded in size, YAML without duplicate keys or exploding aliases."""

import errno
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Final

import yaml

from pipeline.errors import UsageError

LARGEST_FILE_BYTES: Final = 64 * 2**20
LARGEST_LIST_BYTES: Final = 2 * 2**30
"""For `kubectl get -o json` of all objects of a large cluster."""
_MOST_ALIASED: Final = 1_000_000
MOST_FLOW_LEVELS: Final = 200
_MERGE: Final = "tag:yaml.org,2002:merge"

YAML_ERRORS: Final = (yaml.YAMLError, ValueError, RecursionError, KeyError, AttributeError)
"""What PyYAML raises for invalid text; the last two for `!!bool x` and `!!timestamp x`."""


def read_file(
    path: Path,
    most_bytes: int = LARGEST_FILE_BYTES,
    *,
    stream: BinaryIO | None = None,
    error: Callable[..., Exception] = UsageError,
    hint: str = "name a readable file",
) -> bytes:
    """Return the content of a file, or of an open stream in its place.

    Raises `error`, an exception class, if it is unreadable or larger than this, as a device without
    an end is.
    """
    try:
        with nullcontext(stream) if stream else path.open("rb") as file:
            data = file.read(most_bytes + 1)
        if len(data) > most_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {_size_text(most_bytes)}")
    except OSError as problem:
        raise error(f"cannot read {path}: {problem.strerror}", hint=hint) from problem
    return data


def _size_text(size_bytes: int) -> str:
    for unit, unit_bytes in (("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes % unit_bytes == 0:
            return f"{size_bytes // unit_bytes} {unit}"
    return f"{size_bytes} bytes"


def yaml_documents(text: bytes | str) -> list[Any]:
    """Return the documents of a YAML or JSON text. Raises one of `YAML_ERRORS`."""
    return list(yaml.load_all(text, Loader=StrictLoader))


def items_of(tree: Any) -> list[Any]:
    """The items of a Kubernetes List (`null` is none); of anything else a list of it alone."""
    items = tree.get("items", [tree]) if isinstance(tree, dict) else [tree]
    return items if isinstance(items, list) else [] if items is None else [items]


def yaml_problem(error: Exception) -> str:
    """Return what is wrong with a YAML text, and where if that is known, on one line."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, yaml.reader.ReaderError):
        return f"it is not text: {error.reason} at position {error.position}"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem and error.problem_mark:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())


_INT: Final = "tag:yaml.org,2002:int"
_FLOAT: Final = "tag:yaml.org,2002:float"
_NUMBERS: Final = {
    _INT: r"[-+]?(?:0b[01_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)",
    _FLOAT: r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
    r"|[0-9][0-9_]*[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)",
}
"""Numbers as Kubernetes and JSON read them: `7e1` is one, and `1:10`, base 60 of YAML 1.1, is none.
"""


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """PyYAML's resolvers of plain scalars by their first character, with other numbers."""
    resolvers = {
        first: [(tag, pattern) for tag, pattern in given if tag not in _NUMBERS]
        for first, given in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for tag, pattern in _NUMBERS.items():
        for first in "-+.0123456789":
            resolvers.setdefault(first, []).append((tag, re.compile(rf"(?:{pattern})$")))
    return resolvers


class StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses duplicate keys, text that is not Unicode, more than
    `MOST_FLOW_LEVELS` open brackets, and aliases that repeat more than a million values or the
    value that contains them."""

    yaml_implicit_resolvers = _resolvers()

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._aliased = 0

    def fetch_flow_collection_start(self, token_class: Any) -> None:
        super().fetch_flow_collection_start(token_class)
        # PyYAML looks 1,024 characters ahead, and at each open bracket for each token.
        if self.flow_level > MOST_FLOW_LEVELS:
            raise RecursionError

    def construct_scalar(self, node: Any) -> Any:
        text = super().construct_scalar(node)
        text.encode()  # raises for half a surrogate pair
        return text

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        is_alias, mark = isinstance(event, yaml.AliasEvent), event.start_mark
        node: Any = super().compose_node(parent, index)
        if not is_alias:
            children = node.value if isinstance(node, yaml.CollectionNode) else ()
            if isinstance(node, yaml.MappingNode):
                children = [part for pair in children for part in pair]
            node.size = 1 + sum(child.size for child in children)
            return node
        # The size of a value that is not complete is unknown.
        self._aliased += getattr(node, "size", _MOST_ALIASED + 1)
        if self._aliased > _MOST_ALIASED:
            problem = "aliases repeat too many values, or the value that contains them"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen = set()
        # Only keys in the text: `<<` merges keys of another mapping, which these override.
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            if (key.tag, key.value) in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {key.value!r} occurs twice", problem_mark=key.start_mark
                )
            seen.add((key.tag, key.value))
        return node
