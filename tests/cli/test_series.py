"""`springtide series`: invalid ranges, which are refused before Kafka is read."""

import pytest
from click.testing import CliRunner

from pipeline.cli.main import cli


@pytest.mark.parametrize(
    ("range_", "message"),
    [
        (["--from", "2999-01-01T00:00:00Z"], "2999-01-01T00:00:00Z is in the future"),
        (["--last", "15m", "--from", "2023-11-14T22:00:00Z"], "--last excludes --from and --to"),
        (["--last", "soon"], "'soon' is not a duration"),
        (["--from", "2023-11-14T22:00:00Z", "--to", "2023-11-14T21:00:00Z"], "ends before it"),
    ],
)
def test_invalid_range_is_a_usage_error(range_: list[str], message: str) -> None:
    result = CliRunner().invoke(cli, ["series", "node-1", *range_])
    assert result.exit_code == 2
    assert message in result.stderr
