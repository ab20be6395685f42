"""Settings from a YAML file, environment variables and flags, as immutable objects.

`load_settings` returns a `Settings`, or raises a `SettingsError` with the key, value, source and
allowed values of each problem. Each section is declared in a module `*_settings`.
"""

from pipeline.settings.actuator_settings import (
    ActuatorSettings,
    EvictorSettings,
    NotifierSettings,
    PlannerSettings,
)
from pipeline.settings.archive_settings import ArchiveSettings
from pipeline.settings.base import Secret
from pipeline.settings.describe import SettingDescription, describe_settings, settings_markdown
from pipeline.settings.exporter_settings import (
    ExporterSettings,
    HostApplication,
    HostApplicationCgroup,
    node_name,
)
from pipeline.settings.extender_settings import ExtenderSettings
from pipeline.settings.kafka_settings import KafkaSettings
from pipeline.settings.kubernetes_settings import KubernetesSettings, WatcherSettings
from pipeline.settings.load import flag_name, load_settings, settings_with, variable_name
from pipeline.settings.model_settings import (
    BucketSettings,
    HalfLifeSettings,
    HistogramSettings,
    ModelSettings,
)
from pipeline.settings.node_actuator_settings import NodeActuatorSettings
from pipeline.settings.provider_settings import ProviderSettings
from pipeline.settings.schema import Settings
from pipeline.settings.tracing_settings import TracingSettings
from pipeline.settings.webhook_settings import WebhookSettings
from pipeline.settings.worker_settings import WorkerSettings

__all__ = [
    "ActuatorSettings",
    "ArchiveSettings",
    "BucketSettings",
    "EvictorSettings",
    "ExporterSettings",
    "ExtenderSettings",
    "HalfLifeSettings",
    "HistogramSettings",
    "HostApplication",
    "HostApplicationCgroup",
    "KafkaSettings",
    "KubernetesSettings",
    "ModelSettings",
    "NodeActuatorSettings",
    "NotifierSettings",
    "PlannerSettings",
    "ProviderSettings",
    "Secret",
    "SettingDescription",
    "Settings",
    "TracingSettings",
    "WatcherSettings",
    "WebhookSettings",
    "WorkerSettings",
    "describe_settings",
    "flag_name",
    "load_settings",
    "node_name",
    "settings_markdown",
    "settings_with",
    "variable_name",
]
