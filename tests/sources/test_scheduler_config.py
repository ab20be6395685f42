"""Plugins from a file with a KubeSchedulerConfiguration, and invalid files."""

from pathlib import Path

import pytest

from pipeline.cli.explain_request import load_rules
from pipeline.errors import SettingsError
from pipeline.settings import ExtenderSettings
from pipeline.sources.scheduler_config import load_placement

CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: trimaran
  plugins:
    score:
      enabled: [{name: TargetLoadPacking}]
  pluginConfig:
  - name: TargetLoadPacking
    args: {targetUtilization: 70, watcherAddress: "http://127.0.0.1:2020"}
"""


def settings_of(file: Path, text: str) -> ExtenderSettings:
    file.write_text(text)
    return ExtenderSettings(scheduler_config_file=str(file))


def test_document_with_profiles_is_used(tmp_path: Path) -> None:
    text = f"kind: ConfigMap\n---\n---\n{CONFIG}"
    placement = load_placement(settings_of(tmp_path / "config.yaml", text))
    assert [score.plugin for score in placement.scores] == ["TargetLoadPacking"]


def test_misspelt_key_is_reported(tmp_path: Path) -> None:
    text = f"kind: ConfigMap\n---\n{CONFIG.replace('profiles:', 'profile:')}"
    with pytest.raises(SettingsError, match="key 'profile' is not known: is it profiles"):
        load_placement(settings_of(tmp_path / "config.yaml", text))


def test_merge_keys_share_arguments_between_profiles(tmp_path: Path) -> None:
    text = (
        CONFIG.replace("args: {", "args: &args {")
        + "- schedulerName: other\n  pluginConfig:\n"
        + "  - {name: TargetLoadPacking, args: {<<: *args, targetUtilization: 30}}\n"
    )
    placement = load_placement(settings_of(tmp_path / "config.yaml", text))
    assert placement.args["TargetLoadPacking"].target_utilization == 70


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not valid YAML: .*expected"),
        ('a: "\\ud800"', "not valid YAML: .*surrogates not allowed"),
        (CONFIG + "profiles: []\n", r"line 12, column 1: key 'profiles' occurs twice"),
        (CONFIG.replace("70,", "70, targetUtilization: 7,"), "key 'targetUtilization' occurs"),
        ("", "not a KubeSchedulerConfiguration: it is empty"),
    ],
)
def test_invalid_file_is_a_settings_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as raised:
        load_placement(settings_of(tmp_path / "config.yaml", text))
    assert raised.value.key == "extender.scheduler_config_file"
    assert str(tmp_path) in raised.value.message


def test_scheduler_name_without_a_file_has_a_note() -> None:
    assert load_placement(ExtenderSettings()).notes == ()
    placement = load_placement(ExtenderSettings(scheduler_name="koord-scheduler"))
    assert "scheduler_name has no effect without" in placement.notes[0]


def test_ignored_watcher_address_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load_rules(settings_of(tmp_path / "config.yaml", CONFIG))
    warning = "warning: TargetLoadPacking: usage comes from the state table, not from a watcher"
    assert capsys.readouterr().err.startswith(warning)
