"""A worker says what is wrong with its models before it asks the broker for anything."""

import pytest
from click.testing import CliRunner

from pipeline.cli.main import cli


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--predictors", "[percentile, percentile]"), "named twice"),
        (("--predictors", "[percentile, oracle]"), "there is no predictor 'oracle'"),
        (("--predictor-options", "{percentile: {cpu: 1.5}}"), "predictor percentile: cpu"),
        (("--predictor-options", "{vpa: {}}"), "options for vpa, which does not run"),
        (("--histogram-cpu-ratio", "1.0000001"), "model.histogram.cpu"),
    ],
)
@pytest.mark.parametrize("how", [(), ("--no-supervise",)])
def test_settings_that_make_no_model_are_a_settings_error(
    flags: tuple[str, ...], says: str, how: tuple[str, ...]
) -> None:
    nobody = ("--bootstrap-servers", "127.0.0.1:1", "--request-timeout-seconds", "1")
    result = CliRunner().invoke(cli, ["worker", *how, *nobody, *flags])
    assert (result.exit_code, says in result.output) == (2, True), result.output
    assert result.output.startswith("error: ")
