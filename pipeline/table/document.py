"""The table as a JSON document for people and scripts: served by the extender, printed by `top`."""

from typing import Any

from pipeline.clock import format_time
from pipeline.table.table import Table

API_VERSION = "springtide/v1"


def node_item(
    table: Table, name: str, now: float, stale_after_seconds: float
) -> dict[str, Any] | None:
    """The node's state with `age_seconds` and `stale`; None if it has no state."""
    state = table.snapshot(name).state
    if state is None:
        return None
    rows = table.lookup([name])
    age = table.ages(rows, now)
    fields = {field: getattr(state, field) for field in state.__struct_fields__}
    stale = not table.fresh(rows, now, stale_after_seconds)[0]
    return {**fields, "age_seconds": round(float(age[0]), 3), "stale": stale}


def node_list(table: Table, now: float, stale_after_seconds: float) -> dict[str, Any]:
    """All nodes that have a state, by name. Keys are stable: more may come, none will go."""
    items = [node_item(table, name, now, stale_after_seconds) for name in table]
    return {
        "apiVersion": API_VERSION,
        "kind": "NodeStateList",
        "now": format_time(now),
        "items": [item for item in items if item is not None],
    }
