"""Settings: one YAML file, overridden by the environment, overridden by flags; then frozen.

`load_settings` gives a `Settings`, whose sections are the arguments of the roles. What is wrong in
them is a `SettingsError` that names the key, the value, where it came from and what is allowed.
"""

from pipeline.settings.describe import SettingDescription, describe_settings, settings_markdown
from pipeline.settings.load import flag_name, load_settings, variable_name
from pipeline.settings.schema import (
    ExporterSettings,
    ExtenderSettings,
    HalfLifeSettings,
    HostApplication,
    HostApplicationCgroup,
    KafkaSettings,
    LogSettings,
    ModelSettings,
    Secret,
    Settings,
    WorkerSettings,
    node_name,
    state_directory,
)

__all__ = [
    "ExporterSettings",
    "ExtenderSettings",
    "HalfLifeSettings",
    "HostApplication",
    "HostApplicationCgroup",
    "KafkaSettings",
    "LogSettings",
    "ModelSettings",
    "Secret",
    "SettingDescription",
    "Settings",
    "WorkerSettings",
    "describe_settings",
    "flag_name",
    "load_settings",
    "node_name",
    "settings_markdown",
    "state_directory",
    "variable_name",
]
