"""`springtide.node-state`: the row of the state table: one document per node, keyed by its name.

Written by the model agent after every applied window; read by the extender, `top`, and whoever
asks "how is this node, and how sure are we". None is unknown.
"""

import msgspec

from pipeline.topics.resources import Usage
from pipeline.topics.results import Result


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to this node's windows since its models began; each a fact of the log.

    `lost` marks models that could not be brought up to date: offsets of the log that retention
    removed before they were applied, in the node's partition.
    """

    applied: int = 0
    duplicate: int = 0
    late: int = 0
    second_exporter: int = 0
    gaps: int = 0
    untrained: int = 0
    bad_values: int = 0
    lost: int = 0


class NodeStateRecord(Result, frozen=True, kw_only=True):
    """Usage of the last window (its average), peaks, and ages.

    Used memory is, in every field, the figure that the setting `model.memory_collect_policy` names
    (by default without page cache).

    `skew_seconds` is the broker's append time minus the window's end: transport delay plus the
    error of the node's clock. `peaks` maps predictor to the node's peak.
    """

    window_seconds: float
    coverage: float
    simulated: bool = False
    node_known: bool = False
    skew_seconds: float | None = None
    allocatable: Usage = Usage()
    capacity: Usage = Usage()
    usage: Usage = Usage()
    system_usage: Usage = Usage()
    host_app_usage: Usage = Usage()
    class_usage: dict[str, Usage] = msgspec.field(default_factory=dict)
    pods: int = 0
    unknown_pods: int = 0
    peaks: dict[str, Usage] = msgspec.field(default_factory=dict)
    prod_reclaimable: Usage = Usage()
    prod_peak: Usage = Usage()
    counters: Counters = Counters()
