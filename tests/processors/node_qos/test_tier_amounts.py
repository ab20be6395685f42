"""Amounts of Batch and Mid of a pod count what runs at the same time."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.node_qos.tier_amounts import TierAmounts, container_amounts, pod_amounts
from pipeline.topics.pods import Container
from pipeline.topics.resource_amounts import BATCH, LARGEST_AMOUNT, MID, Resources

AMOUNTS = st.one_of(st.none(), st.integers(0, 2000))


@st.composite
def containers(draw: st.DrawFn) -> Container:
    scalars = {name: draw(AMOUNTS) for name in BATCH}
    limits = {name: draw(AMOUNTS) for name in BATCH}
    return Container(
        name="a",
        scalars={name: amount for name, amount in scalars.items() if amount is not None},
        scalar_limits={name: amount for name, amount in limits.items() if amount is not None},
        restartable=draw(st.booleans()),
    )


def of_millicores(millicores: int, *, restartable: bool = False) -> Container:
    return Container(name="a", scalars={BATCH[0]: millicores}, restartable=restartable)


def test_limits_equal_requests_where_the_record_leaves_them_out() -> None:
    container = Container(name="a", scalars={BATCH[0]: 500, BATCH[1]: 64})
    amounts = Resources(cpu_millicores=500, memory_bytes=64)
    assert container_amounts(container, BATCH) == TierAmounts(amounts, amounts)
    assert container_amounts(container, MID) == TierAmounts(Resources(), Resources())


def test_init_containers_and_sidecars_are_counted() -> None:
    init = [of_millicores(100, restartable=True), of_millicores(900)]
    main = [of_millicores(300), of_millicores(400)]
    assert pod_amounts(main, init, BATCH).requests.cpu_millicores == 1000
    assert pod_amounts(main, init[:1], BATCH).requests.cpu_millicores == 800


def test_absurd_amounts_do_not_overflow() -> None:
    huge = [of_millicores(LARGEST_AMOUNT)] * 3
    assert pod_amounts(huge, huge, BATCH).limits.cpu_millicores == LARGEST_AMOUNT


@given(st.lists(containers(), max_size=4), st.lists(containers(), max_size=4))
def test_a_pod_has_a_limit_only_if_all_containers_have_one(
    main: list[Container], init: list[Container]
) -> None:
    pod = pod_amounts(main, init, BATCH)
    parts = [container_amounts(container, BATCH) for container in (*main, *init)]
    for resource in ("cpu_millicores", "memory_bytes"):
        limits = [getattr(part.limits, resource) for part in parts]
        limit = getattr(pod.limits, resource)
        assert (limit is not None) == (bool(limits) and None not in limits)
        # What runs at the same time fits: each container alone, and all main containers together.
        assert limit is None or limit >= max(limits)
        assert limit is None or limit >= sum(limits[: len(main)])
        requests = [getattr(part.requests, resource) or 0 for part in parts]
        assert sum(requests) >= (getattr(pod.requests, resource) or 0) >= max([0, *requests])
