"""Load the policies of the ConfigMap, and resolve them in the record of each node.

The resolved policy is a part of the node's record: so every reader applies the same policy, and a
window is joined with the policy that was known at its offset. Invalid parts leave the last valid
ones in force, and are reported.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from pipeline.errors import InvalidPolicyError
from pipeline.processors.kubernetes.object_records import STRATEGY
from pipeline.processors.kubernetes.pod_classes import CLASS_OF_LABEL
from pipeline.processors.policy.amplification import AMPLIFICATION, Amplification
from pipeline.processors.policy.colocation_config import (
    COLOCATION,
    DEFAULTS,
    MEMORY_COLLECT_POLICIES,
    Colocation,
    bounded,
)
from pipeline.processors.policy.config_sections import (
    Config,
    Section,
    document,
    merge,
    unknown_keys,
)
from pipeline.processors.policy.contradictions import (
    FilterLimits,
    contradictions,
    node_contradictions,
)
from pipeline.processors.policy.effective_strategy import ANNOTATION as COLOCATION_STRATEGY
from pipeline.processors.policy.effective_strategy import effective_strategy
from pipeline.processors.policy.load_configmap import (
    CONFIG_MAP,
    Policy,
    PolicyProblem,
    load_section,
    read_annotation,
)
from pipeline.processors.policy.load_slo_config import (
    NO_RULES,
    SLO_KEYS,
    THRESHOLD,
    SloPolicy,
    load_slo,
)
from pipeline.processors.policy.node_annotations import with_valid_annotations
from pipeline.processors.policy.nodeslo_spec import node_rules, slo_spec
from pipeline.processors.policy.normalization import ENABLED, NORMALIZATION, Normalization, is_on
from pipeline.processors.policy.springtide_config import SPRINGTIDE, SpringtideConfig
from pipeline.processors.slo.nodemetric import PredictPolicy
from pipeline.processors.slo.nodeslo import NodeSLOSpec
from pipeline.topics.nodes import UNSTATED, NodeRecord, NodeStrategy, shared
from pipeline.topics.overcommit_policy import MOST_LETTERS, Overcommit

_MOST_PERCENT: Final = 1_000_000
_YEAR_SECONDS: Final = 31_536_000
_DEFAULT: Final = Overcommit()


_SECTIONS: Final[tuple[Section[Any], ...]] = (
    COLOCATION, SPRINGTIDE, NORMALIZATION, AMPLIFICATION,
)  # fmt: skip
KEYS: Final = (*(section.key for section in _SECTIONS), *SLO_KEYS)
"""The keys of the ConfigMap, which are the places of problems of the cluster's part."""


class Policies(NamedTuple):
    """The policy of each section of the ConfigMap; None before the first valid one."""

    colocation: Policy[Colocation] | None = None
    springtide: Policy[SpringtideConfig] | None = None
    normalization: Policy[Normalization] | None = None
    amplification: Policy[Amplification] | None = None
    slo: SloPolicy = NO_RULES

    @property
    def is_usable(self) -> bool:
        """Whether every section has had a valid cluster part."""
        return None not in (*self, *self.slo)


def load_policies(
    data: Mapping[str, str] | None, last: Policies | None = None, limits: FilterLimits | None = None
) -> tuple[Policies, tuple[PolicyProblem, ...]]:
    """Load the policies from the data of the ConfigMap, None if there is no such object. Returns
    all problems, too. `limits` are those of the scheduler extender."""
    last = last or Policies()
    before = zip(_SECTIONS, last[:4], strict=True)
    loaded = [load_section(section, data, policy) for section, policy in before]
    section_policies: list[Any] = [section.policy for section in loaded]
    rules, _, rule_problems = load_slo(data, last.slo)
    policies = Policies(*section_policies)._replace(slo=rules)
    problems = [*(problem for section in loaded for problem in section.problems), *rule_problems]
    if policies.colocation is not None and policies.springtide is not None:
        threshold = rules.threshold or Policy(THRESHOLD.defaults)
        problems += contradictions(policies.colocation, policies.springtide, threshold, limits)
    unknown = unknown_keys(data or {}, KEYS)
    problems += [PolicyProblem(CONFIG_MAP, text, True) for text in unknown]
    return policies, tuple(dict.fromkeys(problems))


def with_policy(
    record: NodeRecord, policies: Policies, before: NodeRecord | None = None
) -> tuple[NodeRecord, tuple[PolicyProblem, ...]]:
    """Resolve the policy in the record of a node. Returns problems of the node's own settings, too.

    Without a valid policy, as after a start with an invalid ConfigMap, that of `before` stays, the
    last published record of the node. An invalid section or entry affects only itself, and so does
    an annotation of the node.
    """
    before = before or record
    record, own_problems = with_valid_annotations(record, before)
    strategies, problems = _strategies(record, policies, before)
    ratios, ratio_problems = _ratios(record, policies, before)
    rules, rule_problems = _rules(record, policies.slo, before)
    fields = strategies | ratios | rules
    resolved = msgspec.structs.replace(record, **fields)
    if resolved != record:
        resolved = msgspec.structs.replace(resolved, strategy_hash=_hash(fields))
    all_problems = (*own_problems, *problems, *ratio_problems, *rule_problems)
    return resolved, tuple(dict.fromkeys(all_problems))


_Resolved = tuple[dict[str, Any], Iterable[PolicyProblem]]
"""Fields of a record, and problems of the node's own settings."""


def _strategies(record: NodeRecord, policies: Policies, before: NodeRecord) -> _Resolved:
    """The colocation strategy and `springtide-config` of a node, and the fields that follow from
    them.

    A policy with an invalid entry for this node is not certain: then the values of the record
    `before` stay, but the node, its entry and the cluster can still switch colocation off.
    """
    labels = record.labels
    colocation = _usable(policies.colocation, record, before.colocation)
    springtide = _usable(policies.springtide, record, before.springtide)
    if before.colocation is None and (colocation is None or springtide is None):
        return {name: getattr(before, name) for name in _STRATEGIES}, ()
    strategy, is_on, problems = _colocation_strategy(colocation, record, policies, before)
    config, config_problems = _springtide_config(springtide, record, before)
    problems += config_problems
    if colocation is not None and springtide is not None:
        unannotated = colocation.for_labels(labels), springtide.for_labels(labels)
        if unannotated != (strategy, config):
            threshold = policies.slo.threshold or Policy(THRESHOLD.defaults)
            problems += node_contradictions(
                unannotated, (strategy, config), threshold.for_labels(labels)
            )
    fields = {
        # As the spec of its NodeMetric: a node that is off is measured by the defaults.
        "strategy": node_strategy(strategy if is_on else DEFAULTS, config),
        "overcommit": overcommit_settings(strategy, config) if is_on else None,
        "colocation": document(strategy),
        "springtide": document(config),
    }
    return fields, problems


_STRATEGIES: Final = ("strategy", "overcommit", "colocation", "springtide")


def _colocation_strategy(
    policy: Policy[Colocation] | None, record: NodeRecord, policies: Policies, before: NodeRecord
) -> tuple[Colocation, bool, list[PolicyProblem]]:
    """The node's colocation strategy, whether it is on, and problems; that of `before` without a
    usable `policy`."""
    if policy is not None:
        resolved = effective_strategy(policy, record.labels, record.annotations)
        return resolved.strategy, resolved.is_on, [*resolved.problems]
    # The node's own annotation counts nevertheless: a node must be able to switch itself off.
    text = record.annotations.get(COLOCATION_STRATEGY)
    own, problems = read_annotation(COLOCATION, COLOCATION_STRATEGY, text)
    is_on = before.overcommit is not None and own.enable is not False
    if policies.colocation is not None:
        # An invalid entry can be switched off, and so can the cluster beside it.
        for_node = policies.colocation.for_labels(record.labels)
        is_on = is_on and bool(policies.colocation.cluster.enable) and bool(for_node.enable)
    return merge(COLOCATION.convert(before.colocation or {}), own), is_on, problems


def _springtide_config(
    policy: Policy[SpringtideConfig] | None, record: NodeRecord, before: NodeRecord
) -> tuple[SpringtideConfig, list[PolicyProblem]]:
    if policy is None:
        return SPRINGTIDE.convert(before.springtide or {}), []
    own, problems = read_annotation(SPRINGTIDE, STRATEGY, record.annotations.get(STRATEGY))
    return merge(policy.for_labels(record.labels), own), problems


def _usable(
    policy: Policy[Config] | None, record: NodeRecord, known: Mapping[str, Any] | None
) -> Policy[Config] | None:
    """The policy, if it is certain for this node or there is nothing better."""
    if policy is None or (known is not None and not policy.is_certain_for(record.labels)):
        return None
    return policy


def _ratios(record: NodeRecord, policies: Policies, before: NodeRecord) -> _Resolved:
    normalization, amplification = before.cpu_normalization, before.amplification
    problems = []
    if policies.amplification is not None:
        amplification = _raw(policies.amplification.for_labels(record.labels))
    if policies.normalization is not None:
        config = policies.normalization.for_labels(record.labels)
        try:
            # A node that is off does not need the table of all models of CPU.
            config = config if is_on(config, record.labels) else Normalization(enable=False)
        except InvalidPolicyError as error:
            text = error.message.removeprefix(f"label {ENABLED} ")
            problems.append(PolicyProblem(f"label {ENABLED}", text))
        normalization = _raw(config)
    return {"cpu_normalization": normalization, "amplification": amplification}, problems


def _rules(record: NodeRecord, policy: SloPolicy, before: NodeRecord) -> _Resolved:
    last_spec = slo_spec(before) if None in policy else None
    spec, problems = node_rules(policy, record.labels, record.annotations, last_spec)
    return {
        "slo": UNSTATED if spec == NodeSLOSpec() else _raw(spec),
        "host_apps": {
            app.name: CLASS_OF_LABEL[app.priority]
            for app in spec.host_applications or ()
            if app.name and app.priority and app.priority in CLASS_OF_LABEL
        },
    }, problems


def _raw(struct: msgspec.Struct) -> msgspec.Raw:
    return shared(msgspec.json.encode(struct, order="deterministic"))


def node_strategy(strategy: Colocation, config: SpringtideConfig) -> NodeStrategy | None:
    """The settings of prediction that the policy sets for a node; None if there are none. For an
    interval and a memory figure that are Koordinator's defaults the worker's settings hold."""
    limited = bounded(strategy)
    predict = limited.node_predict_policy or PredictPolicy()
    interval = limited.metric_report_interval_seconds
    if interval == DEFAULTS.metric_report_interval_seconds:
        interval = None
    memory = limited.metric_memory_collect_policy
    if memory == DEFAULTS.metric_memory_collect_policy or memory not in MEMORY_COLLECT_POLICIES:
        memory = None
    cold = predict.cold_start_period_seconds
    threshold = predict.resource_diff_threshold_percent
    fields = msgspec.structs.asdict(config)
    settings = NodeStrategy(
        **{name: value for name, value in fields.items() if name in NodeStrategy.__struct_fields__},
        cold_start_seconds=None if cold is None else float(cold),
        resource_diff_threshold_percent=None if threshold is None else float(threshold),
        report_interval_seconds=None if interval is None else float(interval),
        memory_collect_policy=memory,
    )
    return None if settings == NodeStrategy() else settings


def overcommit_settings(strategy: Colocation, config: SpringtideConfig) -> Overcommit:
    """The settings of Mid and Batch; `config` overrides `strategy`."""
    settings: dict[str, Any] = {}
    for part in (strategy, config):
        settings |= {n: v for n, v in msgspec.structs.asdict(part).items() if v is not None}
    fields = Overcommit.__struct_fields__
    values = {name: _bounded(name, value) for name, value in settings.items() if name in fields}
    # omit_defaults compares texts by identity: an equal text would be written and change the hash.
    return Overcommit(**{n: v for n, v in values.items() if v != getattr(_DEFAULT, n)})


def _bounded(name: str, value: Any) -> Any:
    """The value within the limits of a record: a year, ten thousand times as much, and the
    beginning of a long (and so unknown) word."""
    if isinstance(value, str):
        return value[:MOST_LETTERS]
    if name.endswith("_percent"):
        return min(value, _MOST_PERCENT)
    if name == "degrade_time_minutes":
        return min(value, _YEAR_SECONDS // 60)
    return min(value, _YEAR_SECONDS) if name.endswith("_seconds") else value


def _hash(fields: Mapping[str, Any]) -> str:
    text = msgspec.json.encode(fields, order="deterministic")
    return hashlib.sha256(text).hexdigest()[:16]
