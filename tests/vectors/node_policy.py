"""Vector groups of what the policy comes to on a node's objects.

What each passes through:

- `nodemetric_spec`: `nodemetric.metric_spec`, of a node's record with the policy by
  `in_force.load_policies` and `in_force.with_policy`. Of a node that there is not, there is no
  record to be read.
- `cpu_normalization`: `normalization.ratio_text`, `read_cpu_info` and `must_write`.
- `resource_amplification`: `amplification.ratios` and `ratios_text`; `admitted` for the allocatable
  of a node, and `requested` for a request.
"""

import json
from decimal import Decimal
from typing import Any

from pipeline.processors.policy.amplification import (
    AMPLIFICATION,
    RATIOS,
    admitted,
    ratios,
    ratios_text,
    read_ratios,
    requested,
)
from pipeline.processors.policy.colocation_config import DEFAULTS
from pipeline.processors.policy.load_configmap import Policy
from pipeline.processors.policy.nodemetric_spec import metric_spec
from pipeline.processors.policy.normalization import (
    CPU_INFO,
    ENABLED,
    NORMALIZATION,
    RATIO,
    must_write,
    ratio_text,
    read_cpu_info,
    read_ratio,
)
from pipeline.processors.policy.policy_in_force import Policies, load_policies, with_policy
from pipeline.processors.policy.springtide_config import DEFAULTS as OWN_DEFAULTS
from pipeline.topics.codec import decode_json
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.resource_amounts import Resources

Case = dict[str, Any]


def nodemetric_spec(case: Case) -> object:
    node = case["node"] and {"version": 1, "node": "a", **case["node"]}
    record = decode_json(NodeRecord, json.dumps(node).encode())
    last = Policies(Policy(DEFAULTS), Policy(OWN_DEFAULTS))
    policies, _ = load_policies(case["configmap"], last)
    return metric_spec(with_policy(record, policies)[0])


def cpu_normalization(case: Case) -> object:
    if "old" in case:
        return {"write": must_write(case["old"], case["new"])}
    info = read_cpu_info({CPU_INFO: json.dumps(case["cpu_info"])} if case["cpu_info"] else {})
    labels = {ENABLED: case["node_label"]} if "node_label" in case else {}
    return {"annotation": ratio_text(NORMALIZATION.convert(case["strategy"]), labels, info)}


def resource_amplification(case: Case) -> object:
    if "amount" in case:
        return {"amount": requested(case["amount"], Decimal(repr(case["ratio"])))}
    if "config" in case:
        text = case["cpu_normalization_ratio"]
        normalization = read_ratio({} if text is None else {RATIO: text})
        written = ratios_text(ratios(AMPLIFICATION.convert(case["config"]), normalization))
        return {"annotation": written and json.loads(written, parse_float=str)}
    of = read_ratios({RATIOS: json.dumps(case["ratio_annotation"])})
    raw = case["raw_cpu_milli"]
    found = admitted(
        Resources(cpu_millicores=case["allocatable_cpu_milli"]),
        None,
        None if raw is None else Resources(cpu_millicores=raw),
        of,
    )
    return {
        "allocatable_cpu_milli": found.allocatable.cpu_millicores,
        "raw_cpu_milli": found.raw and found.raw.cpu_millicores,
    }


ADAPTERS = {
    "cpu_normalization": cpu_normalization,
    "nodemetric_spec": nodemetric_spec,
    "resource_amplification": resource_amplification,
}
