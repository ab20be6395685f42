"""The plugins that a file with a KubeSchedulerConfiguration asks for, and files of no use."""

from pathlib import Path

import pytest

from pipeline.cli.placement_question import rules_with_warnings
from pipeline.errors import SettingsError
from pipeline.settings import ExtenderSettings
from pipeline.sources.scheduler_config import placement_of

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


def test_of_several_documents_the_one_with_profiles_counts(tmp_path: Path) -> None:
    text = f"kind: ConfigMap\n---\n---\n{CONFIG}"
    found = placement_of(settings_of(tmp_path / "config.yaml", text))
    assert [score.plugin for score in found.scores] == ["TargetLoadPacking"]


def test_a_misspelt_key_is_told_of_the_document_that_is_meant(tmp_path: Path) -> None:
    text = f"kind: ConfigMap\n---\n{CONFIG.replace('profiles:', 'profile:')}"
    with pytest.raises(SettingsError, match="key 'profile' is not known: is it profiles"):
        placement_of(settings_of(tmp_path / "config.yaml", text))


def test_what_profiles_share_may_be_written_once(tmp_path: Path) -> None:
    text = (
        CONFIG.replace("args: {", "args: &args {")
        + "- schedulerName: other\n  pluginConfig:\n"
        + "  - {name: TargetLoadPacking, args: {<<: *args, targetUtilization: 30}}\n"
    )
    found = placement_of(settings_of(tmp_path / "config.yaml", text))
    assert found.args["TargetLoadPacking"].target_utilization == 70


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "not valid YAML: .*expected"),
        (CONFIG + "profiles: []\n", r"key 'profiles' occurs twice .*line 12"),
        (CONFIG.replace("70,", "70, targetUtilization: 7,"), "key 'targetUtilization' occurs"),
        ("", "not a KubeSchedulerConfiguration: NoneType"),
    ],
)
def test_a_file_of_no_use_says_why(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says) as raised:
        placement_of(settings_of(tmp_path / "config.yaml", text))
    assert raised.value.key == "extender.scheduler_config_file"
    assert str(tmp_path) in raised.value.message


def test_a_profile_of_no_file_is_told() -> None:
    assert placement_of(ExtenderSettings()).notes == ()
    found = placement_of(ExtenderSettings(scheduler_name="koord-scheduler"))
    assert "scheduler_name has no effect without" in found.notes[0]


def test_who_asks_by_hand_is_told_what_is_not_listened_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules_with_warnings(settings_of(tmp_path / "config.yaml", CONFIG))
    said = "warning: TargetLoadPacking: usage comes from the state table, not from a watcher"
    assert capsys.readouterr().err.startswith(said)
