"""Load of the shared CPUs is the mean over the last rounds."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.node_qos.share_pool_load import PoolLoad, SharePoolLoad
from tests.processors.node_qos.worlds import amounts, node, pod

CAPACITY = amounts(8000)
CORES = st.floats(0, 16)


def load(pool: SharePoolLoad, at: float, cores: float | None, *pods: object) -> PoolLoad:
    return pool.load(node(*pods, at=at, cpu_cores=cores, capacity=CAPACITY), 50)  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.sampled_from([1, 2, 3, 11]), CORES), min_size=1, max_size=12))
def test_the_load_is_that_of_a_slow_mean(rounds: list[tuple[int, float]]) -> None:
    pool, at, samples = SharePoolLoad(), 0, list[tuple[int, float]]()
    for seconds, cores in rounds:
        at += seconds
        samples.append((at, cores))
        window = [used for when, used in samples if at - when <= 10][-5:]
        ratio = sum(window) / len(window) / 8
        expected = PoolLoad.OVERLOAD if ratio >= 0.5 else PoolLoad.COOLING
        assert load(pool, at, cores) == (PoolLoad.IDLE if ratio < 0.5 * 0.9 else expected)


def test_unknown_usage_of_the_node_is_unknown_although_the_last_round_was_idle() -> None:
    pool = SharePoolLoad()
    assert load(pool, 0, 1.0) is PoolLoad.IDLE
    assert load(pool, 1, None) is PoolLoad.UNKNOWN


def test_unknown_usage_of_a_pod_makes_the_pool_busier() -> None:
    batch = {"kube_qos": "BestEffort", "qos": "BE"}
    assert load(SharePoolLoad(), 0, 6.0, pod("a", cpu_cores=4.0, **batch)) is PoolLoad.IDLE
    assert load(SharePoolLoad(), 0, 6.0, pod("a", **batch)) is PoolLoad.OVERLOAD


def test_a_clock_that_is_set_back_starts_again() -> None:
    pool = SharePoolLoad()
    assert load(pool, 1e9, 8.0) is PoolLoad.OVERLOAD
    assert load(pool, 10, 0.0) is PoolLoad.IDLE
    assert load(pool, 10, 8.0) is PoolLoad.OVERLOAD


def test_pods_that_own_all_cpus_leave_an_overloaded_pool() -> None:
    owner = pod("a", qos="LSE", requests=amounts(8000), cpu_cores=1.0)
    assert load(SharePoolLoad(), 0, 1.0, owner) is PoolLoad.OVERLOAD
