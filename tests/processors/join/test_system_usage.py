import numpy as np

from pipeline.processors.join.system_usage import numa_remainder, remainder

NAN = np.nan


def test_the_remainder_is_never_below_zero_and_unknown_stays_unknown() -> None:
    node = np.array([[4.0, 8e9], [1.0, NAN], [NAN, 5.0]])
    pods = np.array([[1.0, 1e9], [2.0, 1e9], [0.0, 0.0]])
    left = remainder(node, pods, np.array([[0.5, 0.0], [0.0, 0.0], [0.0, NAN]]))
    np.testing.assert_array_equal(left, [[2.5, 7e9], [0.0, NAN], [NAN, NAN]])


def numa(*nodes: tuple[float, list[float], list[float], list[float]]) -> np.ndarray:
    return numa_remainder(*(np.array(column, float) for column in zip(*nodes, strict=True)))


def test_numa_nodes_share_cpu_by_load_and_memory_less_that_of_pods() -> None:
    (found,) = numa((0.8, [1, 3], [1024, 2048], [512, 4096]))
    np.testing.assert_allclose(found, [[0.2, 512], [0.6, 0]], rtol=1e-15)


def test_numa_nodes_of_different_nodes_are_independent() -> None:
    found = numa(
        (1.0, [0, 0], [5, 5], [1, 1]),
        (1.0, [1, NAN], [NAN, 5], [1, 2]),
        (NAN, [1, 1], [5, 5], [1, NAN]),
        (0.5, [1, 0], [9, 9], [0, 9]),
    )
    expected = [
        [[0.0, 4], [0.0, 4]],  # without load it is shared by nobody
        [[NAN, NAN], [NAN, 3]],  # no CPU where one is unknown; memory one by one
        [[NAN, NAN], [NAN, NAN]],  # the pods whose place is unknown may be anywhere
        [[0.5, 9], [0.0, 0]],
    ]
    np.testing.assert_array_equal(found, expected)
