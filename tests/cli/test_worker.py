"""A worker says what is wrong with its models before it asks the broker for anything."""

import pytest
from click.testing import CliRunner

from pipeline.cli.main import cli


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ("--predictors", "[percentile, percentile]"),
            "model.predictors: predictors are named twice",
        ),
        (
            ("--predictors", "[percentile, oracle]"),
            "model.predictors: there is no predictor 'oracle'",
        ),
        (
            ("--predictor-options", "{percentile: {cpu: 1.5}}"),
            "model.predictor_options: predictor percentile: cpu",
        ),
        (("--predictor-options", "{vpa: {}}"), "options for vpa, which does not run"),
        (
            ("--predictors", "[percentile, borg-default]", "--predictor", "borg-default"),
            "model.predictor: 'borg-default' is not allowed, allowed is one that has a peak",
        ),
        (
            (
                "--predictors", "[percentile, max]", "--predictor-options",
                "{max: {members: [percentile, oracle]}}",
            ),
            "predictor max: members: there is no predictor 'oracle'",
        ),
        (("--histogram-cpu-ratio", "1.0000001"), "model.histogram.cpu"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("how", [(), ("--no-supervise",)])
def test_invalid_model_settings_are_a_settings_error(
    flags: tuple[str, ...], says: str, how: tuple[str, ...]
) -> None:
    nobody = ("--bootstrap-servers", "127.0.0.1:1", "--request-timeout-seconds", "1")
    result = CliRunner().invoke(cli, ["worker", *how, *nobody, *flags])
    assert (result.exit_code, says in result.output) == (2, True), result.output
    assert result.output.startswith("error: ")
