"""What counts of a pod: requests of requests, limits of limits, whichever resource it is."""

from functools import partial
from typing import Any

import msgspec
import pytest

from pipeline.processors.kubernetes.object_records import pod_record
from pipeline.processors.loadaware.loadaware_args import LoadAwareArgs, with_defaults
from pipeline.processors.loadaware.pod_amounts import Counting
from pipeline.processors.scorers.node_resources_fit_plus import fitted
from pipeline.topics.codec import decode_json, encode_json
from pipeline.topics.pods import CountedPod, PodRecord

DISK = "ephemeral-storage"
GPU = "nvidia.com/gpu"
BATCH_CPU = "kubernetes.io/batch-cpu"
COUNTING = Counting(
    with_defaults(LoadAwareArgs()),
    ("cpu", "memory", DISK, GPU, BATCH_CPU),
    {f"fitted:{name}": partial(fitted, resource=name) for name in (DISK, GPU, "cpu")},
)


def pod(
    requests: dict[str, Any], limits: dict[str, Any], pod_class: str = "prod", **spec: Any
) -> PodRecord:
    labels = {"koordinator.sh/priority-class": f"koord-{pod_class}"}
    container = {"name": "c", "resources": {"requests": requests, "limits": limits}}
    metadata = {"name": "p", "uid": "u", "labels": labels}
    return pod_record({"metadata": metadata, "spec": {"containers": [container], **spec}})


def counted(of: PodRecord | CountedPod) -> dict[str, int]:
    return dict(zip(COUNTING.names, COUNTING.amounts(of), strict=True))


@pytest.mark.parametrize("name", [DISK, GPU, BATCH_CPU])
def test_limits_count_as_limits_and_requests_as_requests(name: str) -> None:
    of = pod({name: 10}, {name: 40}, overhead={name: 3})
    # In the table there is less of the record than in the extender that is asked.
    for one in (of, decode_json(CountedPod, encode_json(of))):
        found = counted(one)
        assert (found[f"request:{name}"], found[f"limit:{name}"]) == (13, 43)
        assert found[f"bound:{name}"] == 43
    alone = counted(pod({name: 10}, {}, overhead={name: 3}))
    assert (alone[f"request:{name}"], alone[f"limit:{name}"]) == (13, 0)
    assert alone[f"bound:{name}"] == 13


def test_where_a_record_says_no_limits_apart_they_are_what_is_asked_for() -> None:
    of = pod({GPU: 2, DISK: 10}, {GPU: 2, DISK: 40})
    before = msgspec.structs.replace(of, scalar_limits=msgspec.UNSET)
    found = counted(before)
    assert (found[f"limit:{GPU}"], found[f"limit:{DISK}"]) == (2, 10)
    assert counted(of)[f"limit:{DISK}"] == 40


def test_a_pod_asks_a_packed_node_for_its_overhead_too() -> None:
    """As upstream's NodeResourcesFitPlus, whichever resource it is."""
    found = counted(pod({GPU: 2, "cpu": 1}, {}, overhead={GPU: 1, DISK: 7, "cpu": "10m"}))
    assert [found[f"fitted:{name}"] for name in (GPU, DISK, "cpu")] == [3, 7, 1010]


def test_batch_is_expected_to_use_a_share_of_its_limit_as_prod_is() -> None:
    """LoadAware: of the request or the limit, whichever is larger."""
    for limit, expected in ((None, 850), (1000, 850), (4000, 3400)):
        limits = {} if limit is None else {BATCH_CPU: limit}
        batch = counted(pod({BATCH_CPU: 1000}, limits, "batch"))
        prod_limits = {} if limit is None else {"cpu": f"{limit}m"}
        prod = counted(pod({"cpu": "1"}, prod_limits))
        assert batch["estimate:cpu"] == prod["estimate:cpu"] == expected
