import numpy as np
import pytest

from pipeline.processors.system_usage import (
    NumaUsage,
    Reading,
    Usage,
    numa_system_usage,
    remainder,
    system_usage,
)

NODE = Usage(4.0, 8e9)


def test_the_remainder_is_never_below_zero_and_unknown_stays_unknown() -> None:
    node = np.array([[4.0, 8e9], [1.0, np.nan], [np.nan, 5.0]])
    pods = np.array([[1.0, 1e9], [2.0, 1e9], [0.0, 0.0]])
    left = remainder(node, pods, np.array([[0.5, 0.0], [0.0, 0.0], [0.0, np.nan]]))
    np.testing.assert_array_equal(left, [[2.5, 7e9], [0.0, np.nan], [np.nan, np.nan]])


@pytest.mark.parametrize(
    ("node", "pods", "host"),
    [
        (None, [], Usage(0, 0)),
        (NODE, [], None),
        (NODE._replace(age_seconds=10.1), [], Usage(0, 0)),
        (NODE, [Usage(1, 1, 10.1)], Usage(0, 0)),
        (NODE, [], Usage(0, 0, 10.1)),
    ],
)
def test_nothing_comes_of_missing_or_stale_input(
    node: Usage | None, pods: list[Usage], host: Usage | None
) -> None:
    assert system_usage(node, pods, host) is None


def test_exactly_the_limit_is_fresh_and_the_limit_is_a_setting() -> None:
    old = NODE._replace(age_seconds=10.0)
    assert system_usage(old, [Usage(1, 1e9, 10.0)], Usage(0, 0, 10.0)) == Usage(3.0, 7e9)
    assert system_usage(old, [], Usage(0, 0), stale_seconds=5.0) is None


def test_numa_shares() -> None:
    usage = numa_system_usage(
        0.8,
        {"0": Reading(1), "1": Reading(3)},
        {"0": Reading(1024), "1": Reading(2048)},
        {"0": Reading(512), "1": Reading(4096)},
    )
    assert usage == {"0": NumaUsage(0.2, 512), "1": NumaUsage(pytest.approx(0.6), 0.0)}


def test_numa_without_load_shares_nothing() -> None:
    assert numa_system_usage(0.8, {"0": Reading(0)}, {}, {}) == {"0": NumaUsage(0.0, None)}


@pytest.mark.parametrize("pods", [{}, {"0": Reading(1, 11), "1": Reading(1)}])
def test_unknown_pods_drop_the_memory_of_all(pods: dict[str, Reading]) -> None:
    memory = {"0": Reading(5), "1": Reading(5)}
    assert numa_system_usage(1, {"0": Reading(1, 11)}, memory, pods) == {}


def test_stale_memory_drops_its_node_only() -> None:
    usage = numa_system_usage(
        1.0, {}, {"0": Reading(5, 11), "1": Reading(5), "2": Reading(9)},
        {"0": Reading(1), "1": Reading(2)},
    )  # fmt: skip
    assert usage == {"1": NumaUsage(None, 3.0)}
