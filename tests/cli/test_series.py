"""`springtide series`: contradicting options, which are refused before Kafka is read."""

import pytest
from click.testing import CliRunner

from pipeline.cli.main import cli


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--since", "2999-01-01T00:00:00Z"], "'2999-01-01T00:00:00Z' is in the future"),
        (["--since", "soon"], "'soon' is not a time such as 2023-11-14T22:13:30Z, nor a"),
        (["--since", "0s"], "nor a duration such as 90s"),
        (["--since", "15"], "'15' is not a time"),
        (["--until", "2023-11-14T22:00:00Z"], "ends before it begins"),
        (["--since", "2023-11-14"], "not a time such as 2023-11-14T22:13:30Z"),
        (["--pod", "a/b", "--pod-uid", "c"], "exclude each other"),
        (["--since", "2023-11-14T22:00:00Z", "--until", "2023-11-14T21:00:00Z"], "ends before it"),
    ],
)
def test_contradicting_options_are_a_usage_error(options: list[str], message: str) -> None:
    result = CliRunner().invoke(cli, ["series", "node-1", *options])
    assert (result.exit_code, message in result.stderr) == (2, True)
