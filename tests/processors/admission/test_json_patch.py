"""JSON Patches: they turn the old document into the new one."""

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.admission.json_patch import json_patch

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab~/01", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("ab~/01", max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)
documents = st.dictionaries(st.text("ab~/01", max_size=3), json_values, max_size=4)


def patched(document: Any, patch: list[dict[str, Any]]) -> Any:
    """The document after a patch, by RFC 6902."""
    root = {"": copy.deepcopy(document)}
    for operation in patch:
        *parents, last = [
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")
        ]
        parent: Any = root
        for part in parents:
            parent = parent[int(part)] if isinstance(parent, list) else parent[part]
        key: Any = int(last) if isinstance(parent, list) else last
        match operation["op"]:
            case "remove":
                del parent[key]
            case "replace":
                assert key in parent if isinstance(parent, dict) else key < len(parent)
                parent[key] = operation["value"]
            case "add":
                assert isinstance(parent, dict)
                assert key not in parent
                parent[key] = operation["value"]
    return root[""]


@given(documents, documents)
def test_patch_turns_the_old_document_into_the_new_one(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    # As text: in Python, True equals 1.
    assert repr(patched(old, json_patch(old, new))) == repr_in_order(old, new)


def repr_in_order(old: dict[str, Any], new: dict[str, Any]) -> str:
    """The new document with its keys in the order in which a patch leaves them."""

    def ordered(before: Any, after: Any) -> Any:
        if isinstance(before, dict) and isinstance(after, dict):
            kept = [key for key in before if key in after]
            return {
                key: ordered(before.get(key), after[key])
                for key in (*kept, *(key for key in after if key not in before))
            }
        if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
            return [ordered(*pair) for pair in zip(before, after, strict=True)]
        return after

    return repr(ordered(old, new))


@given(documents)
def test_same_documents_differ_in_nothing(document: dict[str, Any]) -> None:
    assert json_patch(document, copy.deepcopy(document)) == []


def test_one_container_of_many_is_changed_alone() -> None:
    old = {"spec": {"containers": [{"name": "a"}, {"name": "b", "x": 1}]}}
    new = {"spec": {"containers": [{"name": "a"}, {"name": "b", "a/b": 2}]}}
    assert json_patch(old, new) == [
        {"op": "remove", "path": "/spec/containers/1/x"},
        {"op": "add", "path": "/spec/containers/1/a~1b", "value": 2},
    ]
