"""Sample sources by name: the `SOURCE` of each module here, and those of other packages."""

from typing import Final

from pipeline.errors import SettingsError
from pipeline.plugin_registry import Registry
from pipeline.sources import provider
from pipeline.sources.provider.sample_source import SampleSource

SOURCES: Final = Registry[SampleSource](
    kind="sample source",
    package=provider,
    attribute="SOURCE",
    group="springtide.sample_sources",
    required="a SampleSource",
    is_valid=lambda plugin: isinstance(plugin, SampleSource),
    error=lambda problem, hint: SettingsError(
        f"provider.kind: {problem}", key="provider.kind", hint=hint
    ),
)
