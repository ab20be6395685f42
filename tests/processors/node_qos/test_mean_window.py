"""Means of the last seconds, against a list of all samples."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.processors.node_qos.mean_window import LONGEST_SECONDS, MeanWindow

NOW = 1_700_000_000.0
STEPS = st.lists(
    st.tuples(st.sampled_from([0, 1, 1, 1, 2, 30, -5]), st.integers(-1, 10**15)), max_size=60
)


@given(STEPS, st.integers(1, 90))
def test_the_mean_is_that_of_the_samples_within_the_window(
    steps: list[tuple[int, int]], seconds: int
) -> None:
    window, at = MeanWindow(), NOW
    samples: list[tuple[float, int]] = []
    for step, value in steps:
        at += step
        if step < 0:
            samples.clear()
        if step or not samples:
            samples.append((at, value))
        window.add(at, (value, 2 * value), seconds)
        within = [value for time, value in samples if time > at - seconds]
        mean = window.mean(seconds)
        if len(within) < seconds // 3:
            assert mean is None
        else:
            total = sum(within)
            assert mean == (total // len(within), 2 * total // len(within))


def test_an_empty_window_has_no_mean() -> None:
    assert MeanWindow().mean(1) is None


def test_a_third_of_the_window_suffices() -> None:
    window = MeanWindow()
    for second in range(19):
        window.add(NOW + second, (5,), 60)
        assert window.mean(60) is None
    window.add(NOW + 19, (5,), 60)
    assert window.mean(60) == (5,)


def test_a_window_of_a_year_takes_the_memory_of_an_hour() -> None:
    window = MeanWindow()
    for second in range(9000):
        window.add(NOW + second, (second,), 1e9)
    assert window.mean(1e9) == (int(9000 - LONGEST_SECONDS / 2 - 0.5),)
    for tick in range(9000):
        window.add(NOW + 9000 + tick / 1000, (1,), 1e9)
    assert len(window._samples) == 4096


def test_a_longer_window_after_a_shorter_one_has_what_is_left() -> None:
    window = MeanWindow()
    for second in range(30):
        window.add(NOW + second, (second,), 3)
    assert window.mean(3) == (28,)
    assert window.mean(30) is None
