"""Settings: one YAML file, overridden by the environment, overridden by flags; then frozen.

`load_settings` gives a `Settings`, whose sections are the arguments of the roles. What is wrong in
them is a `SettingsError` that names the key, the value, where it came from and what is allowed.
"""

from pipeline.settings.base import Secret
from pipeline.settings.describe import SettingDescription, describe_settings, settings_markdown
from pipeline.settings.exporter_settings import (
    ExporterSettings,
    HostApplication,
    HostApplicationCgroup,
    node_name,
)
from pipeline.settings.load import flag_name, load_settings, variable_name
from pipeline.settings.model_settings import (
    BucketSettings,
    ClassSettings,
    HalfLifeSettings,
    HistogramSettings,
    ModelSettings,
)
from pipeline.settings.provider_settings import ProviderSettings
from pipeline.settings.schema import (
    ActuatorSettings,
    EvictorSettings,
    ExtenderSettings,
    KafkaSettings,
    KubernetesSettings,
    LogSettings,
    Settings,
    WatcherSettings,
    WorkerSettings,
    state_directory,
)

__all__ = [
    "ActuatorSettings",
    "BucketSettings",
    "ClassSettings",
    "EvictorSettings",
    "ExporterSettings",
    "ExtenderSettings",
    "HalfLifeSettings",
    "HistogramSettings",
    "HostApplication",
    "HostApplicationCgroup",
    "KafkaSettings",
    "KubernetesSettings",
    "LogSettings",
    "ModelSettings",
    "ProviderSettings",
    "Secret",
    "SettingDescription",
    "Settings",
    "WatcherSettings",
    "WorkerSettings",
    "describe_settings",
    "flag_name",
    "load_settings",
    "node_name",
    "settings_markdown",
    "state_directory",
    "variable_name",
]
