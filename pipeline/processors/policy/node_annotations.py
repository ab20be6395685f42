"""Replace invalid annotations of a node by the last valid ones.

A typing error in a reservation must not offer the reserved capacity. So the record of a node
carries valid annotations, and the next record copies them.
"""

import msgspec

from pipeline.errors import InvalidPolicyError
from pipeline.processors.kubernetes.node_reservation import ANNOTATION as RESERVATION
from pipeline.processors.kubernetes.node_reservation import reservation
from pipeline.processors.kubernetes.object_records import STRATEGY
from pipeline.processors.policy.colocation_config import COLOCATION
from pipeline.processors.policy.config_sections import Config, Section
from pipeline.processors.policy.effective_strategy import ANNOTATION as COLOCATION_STRATEGY
from pipeline.processors.policy.load_configmap import PolicyProblem, read_annotation
from pipeline.processors.policy.springtide_config import SPRINGTIDE
from pipeline.topics.nodes import NodeRecord


def with_valid_annotations(
    record: NodeRecord, before: NodeRecord
) -> tuple[NodeRecord, list[PolicyProblem]]:
    """The record with valid annotations, and the problems of invalid ones.

    An invalid value of a strategy is replaced by that of the record `before`, or not set. An
    invalid reservation is replaced as a whole; it stays if `before` has none.
    """
    koordinator, problems = _strategy(COLOCATION, COLOCATION_STRATEGY, record, before)
    springtide, more = _strategy(SPRINGTIDE, STRATEGY, record, before)
    replaced, problems = koordinator | springtide, problems + more
    try:
        reservation(record.annotations)
    except InvalidPolicyError as error:
        where, _, text = error.message.partition(": ")
        problems.append(PolicyProblem(where, text))
        replaced |= _valid_reservation(before)
    if replaced:
        annotations = {**record.annotations, **replaced}
        record = msgspec.structs.replace(record, annotations=annotations)
    return record, problems


def _strategy(
    section: Section[Config], annotation: str, record: NodeRecord, before: NodeRecord
) -> tuple[dict[str, str], list[PolicyProblem]]:
    """The valid form of an invalid annotation, and its problems; empty for a valid annotation."""
    last, _ = read_annotation(section, annotation, before.annotations.get(annotation))
    own, problems = read_annotation(section, annotation, record.annotations.get(annotation), last)
    if all(problem.in_force for problem in problems):
        return {}, []
    return {annotation: msgspec.json.encode(own, order="deterministic").decode()}, problems


def _valid_reservation(before: NodeRecord) -> dict[str, str]:
    try:
        reservation(before.annotations)
    except InvalidPolicyError:
        return {}
    text = before.annotations.get(RESERVATION)
    return {} if text is None else {RESERVATION: text}
