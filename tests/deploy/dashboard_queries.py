"""The queries of all dashboards, and the metrics and labels that they name."""

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tests.deploy.dashboards import DASHBOARDS

_NAMES: Final = re.compile(r"\b(?:(?:springtide|koordlet|descheduler|process)_\w+|up)\b")
_VARIABLES: Final = {"$node": ".*", "$instance": ".*"}


class Query(NamedTuple):
    """A query of a panel, with values for Grafana's variables, and the legend of its series."""

    dashboard: str
    panel: str
    expression: str
    legend: str

    @property
    def metrics(self) -> set[str]:
        """The names of the metrics that it reads; of a histogram without the suffix."""
        return {name.removesuffix("_bucket") for name in _NAMES.findall(self.expression)}

    @property
    def labels(self) -> set[str]:
        """The labels that it groups by, selects by or shows."""
        text = self.expression
        grouped = ",".join(re.findall(r"by \(([^)]*)\)", text)).split(",")
        selected = re.findall(r"(\w+)(?:=~|!=|=)\"", text)
        shown = re.findall(r"{{(\w+)}}", self.legend)
        return {label.strip() for label in (*grouped, *selected, *shown)} - {""}


def queries(rate_interval: str) -> Iterator[Query]:
    """All queries, with this span for Grafana's `$__rate_interval`."""
    for dashboard in DASHBOARDS.values():
        for panel in dashboard.panels:
            for expression, legend in panel.queries:
                text = expression.replace("$__rate_interval", rate_interval)
                for name, value in _VARIABLES.items():
                    text = text.replace(name, value)
                yield Query(dashboard.title, panel.title, text, legend)


def selectors(query: Query) -> Sequence[str]:
    """The series that a query reads, with their matchers."""
    return re.findall(rf"(?:{_NAMES.pattern})(?:{{[^}}]*}})?", query.expression)
