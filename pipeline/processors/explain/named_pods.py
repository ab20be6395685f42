"""A prediction record with the names of pods in place of their UIDs, for people."""

from collections.abc import Mapping

import msgspec

from pipeline.topics.predictions import PredictionRecord


def with_pod_names(record: PredictionRecord, names: Mapping[str, str]) -> PredictionRecord:
    """Return the record with `names` (by UID) of its pods; a pod without a name keeps its UID."""
    pods = msgspec.structs.replace(
        record.pods, uid=[names.get(uid, uid) for uid in record.pods.uid]
    )
    cold_pods = tuple(names.get(uid, uid) for uid in record.cold_pods)
    return msgspec.structs.replace(record, pods=pods, cold_pods=cold_pods)
