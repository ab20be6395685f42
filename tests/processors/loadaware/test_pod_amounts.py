"""Amounts of pods: requests count as requests and limits as limits, of every resource."""

from functools import partial
from typing import Any

import msgspec
import pytest

from pipeline.processors.kubernetes.object_records import pod_record
from pipeline.processors.loadaware.loadaware_args import LoadAwareArgs, with_defaults
from pipeline.processors.loadaware.pod_amounts import Counting
from pipeline.processors.scorers.node_resources_fit_plus import fit_request
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.pods import CountedPod, PodRecord

DISK = "ephemeral-storage"
GPU = "nvidia.com/gpu"
BATCH_CPU = "kubernetes.io/batch-cpu"
COUNTING = Counting(
    with_defaults(LoadAwareArgs()),
    ("cpu", "memory", DISK, GPU, BATCH_CPU),
    {f"fitted:{name}": partial(fit_request, resource=name) for name in (DISK, GPU, "cpu")},
)


def pod(
    requests: dict[str, Any], limits: dict[str, Any], pod_class: str = "prod", **spec: Any
) -> PodRecord:
    labels = {"koordinator.sh/priority-class": f"koord-{pod_class}"}
    container = {"name": "c", "resources": {"requests": requests, "limits": limits}}
    metadata = {"name": "p", "uid": "u", "labels": labels}
    return pod_record({"metadata": metadata, "spec": {"containers": [container], **spec}})


def counted(record: PodRecord | CountedPod) -> dict[str, int]:
    return dict(zip(COUNTING.names, COUNTING.amounts(record), strict=True))


@pytest.mark.parametrize("name", [DISK, GPU, BATCH_CPU])
def test_limits_count_as_limits_and_requests_as_requests(name: str) -> None:
    asking = pod({name: 10}, {name: 40}, overhead={name: 3})
    # The table reads less of the record than the extender.
    for record in (asking, decode_json(CountedPod, encode_json(asking))):
        amounts = counted(record)
        assert [amounts[f"{kind}:{name}"] for kind in ("request", "limit", "bound")] == [13, 43, 43]
    alone = counted(pod({name: 10}, {}, overhead={name: 3}))
    assert [alone[f"{kind}:{name}"] for kind in ("request", "limit", "bound")] == [13, 0, 13]


def test_without_limits_of_their_own_extended_resources_are_limited_to_requests() -> None:
    asking = pod({GPU: 2, DISK: 10}, {GPU: 2, DISK: 40})
    before = msgspec.structs.replace(asking, scalar_limits=msgspec.UNSET)
    amounts = counted(before)
    assert (amounts[f"limit:{GPU}"], amounts[f"limit:{DISK}"]) == (2, 10)
    assert counted(asking)[f"limit:{DISK}"] == 40


def test_fitted_amounts_include_overhead() -> None:
    """As upstream's NodeResourcesFitPlus, whichever resource it is."""
    amounts = counted(pod({GPU: 2, "cpu": 1}, {}, overhead={GPU: 1, DISK: 7, "cpu": "10m"}))
    assert [amounts[f"fitted:{name}"] for name in (GPU, DISK, "cpu")] == [3, 7, 1010]


def test_batch_pods_are_estimated_by_a_share_of_their_limit() -> None:
    """LoadAware: of the request or the limit, whichever is larger."""
    for limit, expected in ((None, 850), (1000, 850), (4000, 3400)):
        limits = {} if limit is None else {BATCH_CPU: limit}
        batch = counted(pod({BATCH_CPU: 1000}, limits, "batch"))
        prod_limits = {} if limit is None else {"cpu": f"{limit}m"}
        prod = counted(pod({"cpu": "1"}, prod_limits))
        assert batch["estimate:cpu"] == prod["estimate:cpu"] == expected
