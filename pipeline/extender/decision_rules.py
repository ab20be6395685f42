"""The rules of decisions from the settings of an extender."""

from pipeline.extender.decisions import Rules
from pipeline.processors.placement.combine_scores import MAX_EXTENDER_SCORE
from pipeline.processors.scorers.rounding import MAX_SCORE as FINE_SCORE
from pipeline.settings import ExtenderSettings
from pipeline.sources.scheduler_config import load_placement


def rules_of(settings: ExtenderSettings) -> Rules:
    """The rules that these settings enable. Raises `SettingsError`."""
    return Rules(
        load_placement(settings),
        settings.stale_after_seconds,
        FINE_SCORE if settings.fine_scores else MAX_EXTENDER_SCORE,
        settings.in_flight,
    )
