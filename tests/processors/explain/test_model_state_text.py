"""What is shown of a checkpoint is what the models hold; what has no samples has none."""

import pytest

from pipeline.processors.explain.model_state_text import head, items, names_of, table
from pipeline.processors.model import state_codec
from pipeline.processors.model.bank import Bank
from pipeline.processors.model.model_config import ENTITIES
from tests.processors.windows import GIB, Pod, window


@pytest.fixture
def state() -> state_codec.ModelState:
    bank = Bank()
    bank.apply([window(i, [Pod("a", (1.0, float("nan")))], usage=(i, 2 * GIB)) for i in (1, 3)])
    return state_codec.decode(bank.encode_state("node-a"))


def rows(lines: list[str]) -> dict[tuple[str, str], dict[str, str]]:
    titles = ["ENTITY", "PROFILE", "FIRST", "LAST", "RESOURCE", "SAMPLES", "BUCKETS", "MEAN"]
    assert lines[0].split() == [*titles, "STDEV"]
    cells = [line.split() for line in lines[1:]]
    return {(line[0], line[4]): dict(zip(titles, line, strict=False)) for line in cells}


def test_entities_have_samples_times_buckets_and_moments(state: state_codec.ModelState) -> None:
    found = rows(table(state))
    assert [name for name, resource in found if resource == "cpu"] == list(ENTITIES)
    cpu = found["node", "cpu"]
    assert [cpu[title] for title in ("SAMPLES", "BUCKETS", "FIRST", "LAST")] == [
        "2", "2", "2023-11-14T22:16:00Z", "2023-11-14T22:20:00Z",
    ]  # fmt: skip
    assert 2000 < int(cpu["MEAN"].removesuffix("m")) < 2010
    assert found["node", "memory"]["MEAN"] == "2.0Gi"


def test_without_samples_nothing_is_zero(state: state_codec.ModelState) -> None:
    found = rows(table(state, pods=True))
    for key in (("unknown", "cpu"), ("a", "memory")):
        assert (found[key]["SAMPLES"], found[key]["BUCKETS"], found[key]["MEAN"]) == (
            "none", "-", "-",
        )  # fmt: skip
    assert found["unknown", "cpu"]["FIRST"] == "never"
    assert found["a", "cpu"]["SAMPLES"] == "2"


def test_pods_and_named_rows_are_shown_on_request(state: state_codec.ModelState) -> None:
    assert names_of(state) == (*ENTITIES, "a")
    assert {name for name, _ in rows(table(state, pods=True))} == {*ENTITIES, "a"}
    assert {name for name, _ in rows(table(state, ["a", "prod"]))} == {"a", "prod"}
    with pytest.raises(KeyError):
        table(state, ["z"])


def test_items_have_the_values_of_the_table(state: state_codec.ModelState) -> None:
    found = {(row["entity"], row["resource"]): row for row in items(state, pods=True)}
    assert [*found] == [*rows(table(state, pods=True))]
    assert found["node", "memory"]["mean"] == 2 * GIB
    assert found["node", "cpu"]["first"] == "2023-11-14T22:16:00Z"
    names = {"a": "shop/web-0"}
    (cpu, memory) = items(state, ["a"], pod_names=names)
    assert (cpu["entity"], cpu["name"], cpu["samples"]) == ("a", "shop/web-0", 2)
    # No sample had memory.
    assert (memory["samples"], memory["buckets"], memory["mean"]) == (0, None, None)
    assert found["unknown", "cpu"]["first"] is None


def test_head_names_node_machine_and_model(state: state_codec.ModelState) -> None:
    text = "\n".join(head(state))
    assert f"model {state.fingerprint}" in text
    assert "windows: 2 applied, 1 missing" in text
    assert f"models: {len(ENTITIES)} entities, 1 pods" in text
