import pytest

from pipeline.processors.policy.collect_interval import collect_interval


@pytest.mark.parametrize(
    ("asked", "effective"),
    [
        ((None, None), (60, 300)), ((666, None), (666, 300)), ((None, 1200), (60, 1200)),
        ((30, 60), (30, 60)), ((29, 59), (30, 60)), ((0, -5), (30, 60)),
        ((86_400, 86_400), (86_400, 86_400)), ((86_401, 2**63 - 1), (86_400, 86_400)),
    ],
)  # fmt: skip
def test_defaults_and_limits(
    asked: tuple[int | None, int | None], effective: tuple[int, int]
) -> None:
    assert collect_interval(*asked) == effective
