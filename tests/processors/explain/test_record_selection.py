"""A part of a record has what was asked for as it was published, and of the rest no key."""

from typing import Any

import msgspec
import pytest

from pipeline.processors.explain.derivation import RESOURCES
from pipeline.processors.explain.record_selection import part_of
from pipeline.processors.model.model_config import ENTITIES
from pipeline.topics.codec import encode_json
from pipeline.topics.predictions import PredictionRecord
from pipeline.topics.resource_amounts import ByResource
from tests.processors.explain.test_prediction_text import PREDICTORS, random_records


def select_part(record: PredictionRecord, **chosen: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(part_of(record, **chosen)))


def keys(document: Any) -> set[str]:
    """Every key that a document has, however deep."""
    if isinstance(document, dict):
        return {*document}.union(*map(keys, document.values()))
    return set[str]().union(*map(keys, document)) if isinstance(document, list) else set()


def test_selecting_everything_gives_the_record() -> None:
    record, _ = random_records(0)
    assert msgspec.json.encode(part_of(record)) == encode_json(record)


@pytest.mark.parametrize("resource", RESOURCES)
def test_selected_resource_excludes_the_other(resource: str) -> None:
    record, _ = random_records(0)
    found, kind = select_part(record, resources=[resource]), RESOURCES[resource]
    assert not keys(found) & {kind.other, RESOURCES[kind.other].field}
    peak = record.node_peaks.peaks["percentile"]
    assert found["node_peaks"]["peaks"]["percentile"] == {kind.field: kind.value(peak)}
    assert found["pods"]["samples"] == {resource: getattr(record.pods.samples, resource)}
    assert found["as_of"] == record.as_of


def test_term_may_have_the_name_of_a_resource() -> None:
    record, _ = random_records(0)
    terms = {"theirs": {"memory": ByResource(cpu=1.0, memory=2.0)}}
    node = msgspec.structs.replace(record.node_peaks, terms=terms)
    record = msgspec.structs.replace(record, node_peaks=node)
    found = select_part(record, resources=["cpu"])
    assert found["node_peaks"]["terms"] == {"theirs": {"memory": {"cpu": 1.0}}}


@pytest.mark.parametrize("entity", ENTITIES)
def test_selected_entity_has_only_its_pods(entity: str) -> None:
    record, _ = random_records(0)
    found = select_part(record, entities=[entity])
    assert ("node_peaks" in found, "system" in found) == (entity == "node", entity == "system")
    assert [*found["classes"]] == [entity] * (entity in record.classes)
    assert ("reclaimable" in found) == (entity == "prod")
    wanted = {"node": ENTITIES, "prod": ("prod", "none", "unknown")}.get(entity, (entity,))
    uids = [
        uid
        for uid, name in zip(record.pods.uid, record.pods.pod_class, strict=True)
        if name in wanted
    ]
    pods = found["pods"]
    assert pods["uid"] == uids
    assert len(pods["samples"]["cpu"]) == len(pods["raw"]["vpa"]["cpu_cores"]) == len(uids)
    assert found["cold_pods"] == [uid for uid in record.cold_pods if uid in uids]


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_selected_predictor_excludes_others(predictor: str) -> None:
    record, _ = random_records(0)
    found = select_part(record, predictors=[predictor])
    for entity in (found["node_peaks"], found["system"], *found["classes"].values()):
        assert [*entity["peaks"]] == [*entity["raw"]] == [predictor]
        assert {*entity["terms"]} <= {predictor}
        assert entity["model"]["first_at"]
    assert [*found["pods"]["raw"]] == [*found["reclaimable"]] == [predictor]
