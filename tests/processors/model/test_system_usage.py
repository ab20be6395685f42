import numpy as np

from pipeline.processors.model.training_batch import system_remainder

NAN = np.nan


def test_the_remainder_is_never_below_zero_and_unknown_stays_unknown() -> None:
    node = np.array([[4.0, 8e9], [1.0, NAN], [NAN, 5.0]])
    pods = np.array([[1.0, 1e9], [2.0, 1e9], [0.0, 0.0]])
    left = system_remainder(node, pods, np.array([[0.5, 0.0], [0.0, 0.0], [0.0, NAN]]))
    np.testing.assert_array_equal(left, [[2.5, 7e9], [0.0, NAN], [NAN, NAN]])
