"""What `springtide series` says of a range that is none, before it asks anybody."""

import pytest
from click.testing import CliRunner

from pipeline.cli.main import cli


@pytest.mark.parametrize(
    ("range_", "says"),
    [
        (["--from", "2999-01-01T00:00:00Z"], "2999-01-01T00:00:00Z is in the future"),
        (["--last", "15m", "--from", "2023-11-14T22:00:00Z"], "neither --from nor --to"),
        (["--last", "soon"], "'soon' is no duration"),
        (["--from", "2023-11-14T22:00:00Z", "--to", "2023-11-14T21:00:00Z"], "ends before it"),
    ],
)
def test_a_range_that_is_none_is_a_usage_error(range_: list[str], says: str) -> None:
    result = CliRunner().invoke(cli, ["series", "node-1", *range_])
    assert result.exit_code == 2
    assert says in result.stderr
