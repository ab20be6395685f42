"""The pages of custom resources: a real API server accepts their examples, and not more fields."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from pipeline.errors import ControlPlaneError
from pipeline.local.control_plane import ControlPlane
from pipeline.processors.slo.crd_schema import Kind, definition
from tests.cluster.objects import define
from tests.crds import FOLDER
from tests.docs.resource_tables import RESOURCES, page_of, resource_fields
from tests.docs.tables import DOCS


def example_of(kind: Kind) -> Any:
    """The only object on the page of a kind."""
    (text,) = (DOCS / page_of(kind)).read_text().split("```yaml\n")[1:]
    return yaml.safe_load(text.partition("```")[0])


def leaf_names(schema: Any) -> Iterator[str]:
    """The names of all properties below a schema."""
    for name, below in schema.get("properties", {}).items():
        yield name
        yield from leaf_names(below)
    for part in ("items", "additionalProperties"):
        if isinstance(schema.get(part), dict):
            yield from leaf_names(schema[part])


@pytest.mark.parametrize("kind", RESOURCES, ids=lambda kind: kind.name)
def test_a_page_has_every_field_of_the_definition(kind: Kind) -> None:
    schema = definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    table = resource_fields(kind)
    names = {*leaf_names(schema)} - {"apiVersion", "kind", "metadata"}
    assert [name for name in names if f"| `{name}` |" not in table] == []


@pytest.mark.parametrize("kind", RESOURCES, ids=lambda kind: kind.name)
def test_every_field_of_a_page_has_a_meaning(kind: Kind) -> None:
    assert [row for row in resource_fields(kind).splitlines() if row.endswith("|  |")] == []


@pytest.fixture(scope="module")
def defined(plane: ControlPlane) -> Iterator[ControlPlane]:
    """A control plane with our kinds."""
    define(plane, str(FOLDER))
    yield plane
    plane.kubectl("delete", "-f", str(FOLDER))


@pytest.mark.plane
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", RESOURCES, ids=lambda kind: kind.name)
def test_the_api_server_accepts_the_example_as_it_is(defined: ControlPlane, kind: Kind) -> None:
    example = example_of(kind)
    flags: list[tuple[str, ...]] = [("--validate=strict",)]
    flags += [("--server-side", "--subresource=status")] if "status" in example else []
    for more in flags:
        defined.kubectl("apply", *more, "-f", "-", stdin=json.dumps(example))
    name = example["metadata"]["name"]
    stored = json.loads(defined.kubectl("get", kind.plural, name, "-o", "json"))
    for part in {"spec", "status"} & example.keys():
        assert stored[part] == example[part]
    example["spec"]["mistyped"] = 1
    with pytest.raises(ControlPlaneError, match="mistyped"):
        defined.kubectl("apply", "--validate=strict", "-f", "-", stdin=json.dumps(example))
