"""Policies of files, resolved for the nodes of a trace as the watcher resolves them for Nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import numpy as np

from pipeline.agents.bank_settings import model_config
from pipeline.errors import InvalidPolicyError
from pipeline.processors.arrays import FloatArray
from pipeline.processors.backtest.trace import Trace
from pipeline.processors.backtest.what_if import ReplayedPolicy
from pipeline.processors.descheduling.descheduler_config import Descheduling
from pipeline.processors.descheduling.hot_node_policies import with_hot_nodes
from pipeline.processors.join.node_facts import node_facts
from pipeline.processors.model.model_config import RESOURCES, ModelConfig
from pipeline.processors.policy.load_configmap import PolicyProblem
from pipeline.processors.policy.policy_in_force import Policies, load_policies, with_policy
from pipeline.settings import Settings, settings_with
from pipeline.sources.policy_file import (
    config_map_in,
    contents_text,
    descheduling_in,
    has_config_map,
    policy_objects_in,
)
from pipeline.topics.nodes import NodeRecord
from pipeline.topics.resource_amounts import Resources

_SECTION: Final = "model"


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """The settings and policies of a file; those of no file by default."""

    settings: Settings
    policies: Policies | None = None
    descheduling: Descheduling | None = None
    warnings: tuple[str, ...] = ()


def read_policy(text: bytes, name: str, settings: Settings) -> PolicyFile:
    """Read a file of policies and settings, these on top of `settings`.

    Raises `InvalidPolicyError` or `SettingsError` if a part of it is not in force.
    """
    objects = policy_objects_in(text, name)
    trees = [item for item in objects if isinstance(item, dict) and "kind" not in item]
    objects = [item for item in objects if item not in trees]
    for tree in trees:
        if set(tree) != {_SECTION}:
            raise InvalidPolicyError(
                f"{name}: {contents_text([tree])} that is not just the section {_SECTION}",
                hint="docs/how-to/try-a-policy.md has an example",
            )
        settings = _with_section(settings, tree, name)
    problems: list[PolicyProblem] = []
    policies, descheduling = None, None
    if has_config_map(objects):
        policies, found = load_policies(config_map_in(objects, name))
        problems += found
    if (read := descheduling_in(objects, name)) is not None:
        descheduling, others = read
        problems += others
    if not trees and policies is None and read is None:
        raise InvalidPolicyError(
            f"{name} has no policy: {contents_text(objects)}",
            hint="docs/how-to/try-a-policy.md has an example",
        )
    if refused := [problem for problem in problems if not problem.in_force]:
        raise InvalidPolicyError(
            f"{name}: {refused[0]}", hint="`springtide policy` shows all problems"
        )
    return PolicyFile(settings, policies, descheduling, tuple(map(str, problems)))


def _with_section(settings: Settings, tree: Mapping[object, object], name: str) -> Settings:
    """`settings` with a section of a file. Raises `InvalidPolicyError` for another statistic of
    usage: both policies are judged by one usage, which is read once."""
    changed = settings_with(settings, tree, name)
    own, read = changed.model.training_statistic, settings.model.training_statistic
    if own != read:
        raise InvalidPolicyError(
            f"{name}: model.training_statistic is {own}, but {read} of usage is replayed",
            hint=f"--training-statistic {own} replays it under both policies; or drop the key",
        )
    return changed


@dataclass(frozen=True, slots=True, eq=False)
class NodeAmounts:
    """What each node of a trace can hand out, (k, 2) millicores and bytes, and what was assumed."""

    amounts: FloatArray
    notes: list[str]

    @classmethod
    def of(cls, trace: Trace, capacity: str) -> NodeAmounts:
        """Allocatable as the trace has it, else the highest sum of the pods' `capacity`, limits or
        requests."""
        sums = _highest_sums(trace, trace.limits if capacity == "limits" else trace.requests)
        unknown = np.isnan(trace.allocatable)
        notes = [
            f"capacity of {resource} is not in the trace of {count} nodes: the highest sum of "
            f"{capacity} stands for it"
            for r, resource in enumerate(RESOURCES)
            if resource in trace.resources and (count := int(unknown[:, r].sum()))
        ]
        return cls(np.where(unknown, sums, trace.allocatable), notes)


def _highest_sums(trace: Trace, amounts: FloatArray) -> FloatArray:
    """The highest sum of the amounts of the pods that run on each node at a time, (k, 2)."""
    highest = np.zeros((len(trace.nodes), 2))
    for node, (first, last) in enumerate(
        zip(trace.node_starts[:-1].tolist(), trace.node_starts[1:].tolist(), strict=True)
    ):
        changes = np.zeros((trace.steps + 1, 2))
        np.add.at(changes, trace.start[first:last], amounts[first:last])
        np.subtract.at(changes, trace.end[first:last], amounts[first:last])
        highest[node] = np.cumsum(changes, axis=0).max(axis=0)
    return highest


def replayed_policy(trace: Trace, file: PolicyFile, amounts: NodeAmounts) -> ReplayedPolicy:
    """The policy in force for the nodes of a trace. They have no labels and annotations: the
    cluster's part applies, and parts that select every node."""
    config = model_config(file.settings)
    records = {
        name: _record(name, amounts.amounts[node], file) for node, name in enumerate(trace.nodes)
    }
    facts = {name: node_facts(record, config.strategy) for name, record in records.items()}
    (predictor,) = {each.strategy.predictor for each in facts.values()}
    return ReplayedPolicy(config=_deciding(config, predictor), facts=facts)


def _record(name: str, amounts: FloatArray, file: PolicyFile) -> NodeRecord:
    cpu, memory = np.round(amounts).astype(np.int64).tolist()
    known = Resources(cpu_millicores=cpu, memory_bytes=memory)
    record = NodeRecord(node=name, allocatable=known, capacity=known)
    if file.policies is not None:
        record, _ = with_policy(record, file.policies)
    return with_hot_nodes(record, file.descheduling)


def _deciding(config: ModelConfig, predictor: str) -> ModelConfig:
    """The configuration with the predictor that decides alone: the others change no offer."""
    options: Mapping[str, Any] = config.options.get(predictor, {})
    return replace(
        config,
        predictors=(predictor,),
        options={predictor: options} if options else {},
        strategy=msgspec.structs.replace(config.strategy, predictor=predictor),
    )
