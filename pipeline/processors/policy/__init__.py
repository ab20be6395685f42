"""Read the ConfigMap `slo-controller-config`, and resolve the policy of each node.

`policy_in_force` loads every key and resolves the record of a node. `config_sections` reads a key,
`selectors` matches the nodes of an entry, `load_configmap` makes a `Policy` of a key, or retains
the last valid one. `colocation_config` has the keys of colocation, their ranges and defaults,
`effective_strategy` resolves them for a node; `springtide_config` has Springtide's own keys.
`normalization` and `amplification` have the ratios of CPU models and resources. `slo_defaults`,
`slo_checks`, `load_slo_config` and `nodeslo_spec` have the rules of quality of service, with fields
of `pipeline.processors.slo.nodeslo`. `contradictions` finds settings that contradict each other or
the scheduler extender. Names, ranges and order of merging follow
[Koordinator](https://koordinator.sh/docs/user-manuals/slo-config).
"""
