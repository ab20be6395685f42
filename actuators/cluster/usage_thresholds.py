"""Annotate Nodes with the usage thresholds of the present time of day.

The hours are those of the plugin `TimeSharedThresholds`, which our extender applies by itself.
Koordinator's scheduler knows no hours, but reads a Node's thresholds in its annotation. Users may
set that, too: it is ours only while the annotation `WRITTEN_THRESHOLDS` has the same value.
"""

from typing import Any, ClassVar

from actuators.cluster.feature import Context, Topics
from actuators.cluster.node_metadata_feature import NodeMetadataFeature
from pipeline.processors.kubernetes.object_records import USAGE_THRESHOLDS, WRITTEN_THRESHOLDS
from pipeline.processors.placement.threshold_hours import TIME_SHARED, thresholds_annotation
from pipeline.sources.scheduler_config import load_placement
from pipeline.topics.registry import NODES, Topic


class UsageThresholds(NodeMetadataFeature):
    """Annotates the Nodes that `annotateNodes` of `TimeSharedThresholds` selects, during its
    windows."""

    name = "usage_thresholds"
    annotations = (USAGE_THRESHOLDS, WRITTEN_THRESHOLDS)
    topics: ClassVar[Topics] = {NODES: None}

    def __init__(self, context: Context) -> None:
        """Raises `SettingsError` if the file with the plugin's arguments is invalid."""
        super().__init__(context)
        placement = load_placement(context.settings.extender) if self.is_on else None
        is_enabled = placement is not None and TIME_SHARED in placement.filters
        self._placement = placement if is_enabled else None
        self._selected: set[str] = set()
        self._text: str | None = None

    def learn(self, topic: Topic, node: str, record: Any) -> None:
        placement = self._placement
        selector = None if placement is None else placement.args[TIME_SHARED].annotate_nodes
        if record is not None and selector is not None and selector.matches(record.labels):
            self._selected.add(node)
        else:
            self._selected.discard(node)
        self._mark(node)

    def decide(self, *, everything: bool) -> None:
        text = self._text_now()
        if text != self._text:
            self._text = text
            for node in self._selected:
                self._mark(node)
        super().decide(everything=everything)

    def _text_now(self) -> str | None:
        if self._placement is None:
            return None
        args, general = self._placement.args[TIME_SHARED], self._placement.load_aware
        return thresholds_annotation(args, general, self._clock.now())

    def _mark(self, node: str) -> None:
        text = self._text if node in self._selected else None
        self.set_desired(node, {} if text is None else dict.fromkeys(self.annotations, text))

    def _difference(self, name: str) -> dict[str, dict[str, str | None]]:
        actual = self._actual.get(name, {})
        written = actual.get(WRITTEN_THRESHOLDS)
        if actual.get(USAGE_THRESHOLDS, written) != written:
            return {} if written is None else {"annotations": {WRITTEN_THRESHOLDS: None}}
        return super()._difference(name)
