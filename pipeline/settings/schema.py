"""All settings: sections of keys with type, range, default and description.

`--help` and docs/reference/settings.md are generated from the descriptions.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from pipeline.settings.actuator_settings import (
    ActuatorSettings,
    EvictorSettings,
    NotifierSettings,
    PlannerSettings,
)
from pipeline.settings.archive_settings import ArchiveSettings
from pipeline.settings.base import Section
from pipeline.settings.exporter_settings import ExporterSettings
from pipeline.settings.extender_settings import ExtenderSettings
from pipeline.settings.kafka_settings import KafkaSettings
from pipeline.settings.kubernetes_settings import KubernetesSettings, WatcherSettings
from pipeline.settings.model_settings import ModelSettings
from pipeline.settings.node_actuator_settings import NodeActuatorSettings
from pipeline.settings.provider_settings import ProviderSettings
from pipeline.settings.tracing_settings import TracingSettings
from pipeline.settings.webhook_settings import WebhookSettings
from pipeline.settings.worker_settings import WorkerSettings


class LogSettings(Section, frozen=True, kw_only=True):
    """The log on standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Lowest level that is logged."),
    ] = "info"
    format: Annotated[
        Literal["auto", "human", "json"],
        Meta(description="auto: human on a terminal, else JSON lines."),
    ] = "auto"


class Settings(Struct, frozen=True, kw_only=True):
    """All settings by section."""

    kafka: KafkaSettings = KafkaSettings()
    exporter: ExporterSettings = ExporterSettings()
    worker: WorkerSettings = WorkerSettings()
    model: ModelSettings = ModelSettings()
    extender: ExtenderSettings = ExtenderSettings()
    kubernetes: KubernetesSettings = KubernetesSettings()
    watcher: WatcherSettings = WatcherSettings()
    actuator: ActuatorSettings = ActuatorSettings()
    evictor: EvictorSettings = EvictorSettings()
    planner: PlannerSettings = PlannerSettings()
    notifier: NotifierSettings = NotifierSettings()
    archive: ArchiveSettings = ArchiveSettings()
    node_actuator: NodeActuatorSettings = NodeActuatorSettings()
    provider: ProviderSettings = ProviderSettings()
    webhook: WebhookSettings = WebhookSettings()
    tracing: TracingSettings = TracingSettings()
    log: LogSettings = LogSettings()

    @property
    def worker_group(self) -> str:
        """The workers' consumer group: with its topic prefix, because a cluster may have several
        sets of topics, and members of one group share the partitions of all."""
        return f"{self.kafka.topic_prefix}.{self.worker.id}"
