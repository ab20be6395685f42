"""Settings of the archiver."""

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from pipeline.settings.base import MetricsHost, MetricsPort, Section


class ArchiveSettings(Section, frozen=True, kw_only=True):
    """The archiver, which writes windows to Parquet files."""

    directory: Annotated[
        Path,
        Meta(
            description="Directory of the archive, of one cluster and topic prefix; created if it "
            "is missing, without its parents."
        ),
    ] = Path("/var/lib/springtide/archive")
    file_rows: Annotated[
        int,
        Meta(ge=10_000, le=100_000_000, description="A file ends when it has this many rows."),
    ] = 1_000_000
    file_seconds: Annotated[
        float,
        Meta(
            ge=1,
            le=86_400,
            description="Longest time until windows are in a complete file; after a crash as much "
            "is read from the topic again.",
        ),
    ] = 3600.0
    keep_days: Annotated[
        Annotated[int, Meta(ge=1, le=36_500)] | None,
        Meta(description="Days (UTC) that are kept, today included; null: all."),
    ] = None
    metrics_host: MetricsHost = "0.0.0.0"
    metrics_port: MetricsPort = 9111
