"""Read a DeschedulerConfiguration as a whole: every key is known or reported with its path.

A problem of a plugin's arguments makes this plugin dry, one outside of plugins all of them: it
decides, and evicts nothing until the problem is corrected. Valid parts beside it are in force.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from pipeline.errors import InvalidPolicyError
from pipeline.input_files import YAML_ERRORS, yaml_documents, yaml_problem
from pipeline.processors.descheduling import (
    low_node_load,
    migration_args,
    requested_relief,
    reserved_cpus,
)
from pipeline.processors.descheduling.field_types import (
    VERSION,
    Count,
    PluginArgs,
    Seconds,
)
from pipeline.processors.descheduling.low_node_load import LowNodeLoad, read_low_node_load
from pipeline.processors.descheduling.low_node_load_args import AnomalyCondition, LowNodeLoadArgs
from pipeline.processors.descheduling.low_node_utilization import (
    LowNodeUtilizationArgs,
)
from pipeline.processors.descheduling.migration_args import (
    MigrationControllerArgs,
)
from pipeline.processors.descheduling.strategy_args import (
    CustomPriorityArgs,
    FragmentationAwareArgs,
    NodeRequestsArgs,
    NodeReservationArgs,
    ScaleDownBinPackArgs,
)
from pipeline.processors.descheduling.strict_reading import (
    NOTHING,
    child,
    read_struct,
    shown,
    unknown_key,
)
from pipeline.processors.policy.config_sections import json_keys
from pipeline.processors.policy.load_configmap import PolicyProblem
from pipeline.processors.policy.selectors import Selector

KIND: Final = "DeschedulerConfiguration"
SIGS_KIND: Final = "DeschedulerPolicy"
"""The kind of the configuration of kubernetes-sigs/descheduler."""
CONFIG_MAP_KEY: Final = "koord-descheduler-config"
LOW_NODE_LOAD: Final = low_node_load.NAME
MIGRATION_CONTROLLER: Final = migration_args.NAME
_MOST_PROBLEMS: Final = 100
_DEFAULT_INTERVAL_SECONDS: Final = 120.0
_UNUSED: Final = (
    "clientConnection", "leaderElection", "enableProfiling", "enableContentionProfiling",
    "healthzBindAddress", "metricsBindAddress",
)  # fmt: skip
"""Keys that are read and checked. Springtide's settings hold instead."""


class _Plugin(NamedTuple):
    """A plugin whose arguments are read in one piece. `dry` are the fields that make it evict
    nothing; None: it does not run here."""

    kind: type[PluginArgs]
    dry: Mapping[str, Any] | None


_PLUGINS: Final[Mapping[str, _Plugin]] = {
    "CustomPriority": _Plugin(CustomPriorityArgs, {"dry_run": True}),
    "FragmentationAware": _Plugin(FragmentationAwareArgs, {"dry_run": True}),
    reserved_cpus.NAME: _Plugin(NodeReservationArgs, {"dry_run": True}),
    requested_relief.NAME: _Plugin(NodeRequestsArgs, {"dry_run": True}),
    "ScaleDownBinPack": _Plugin(ScaleDownBinPackArgs, {"paused": True}),
    MIGRATION_CONTROLLER: _Plugin(MigrationControllerArgs, {"dry_run": True}),
    "LowNodeUtilization": _Plugin(LowNodeUtilizationArgs, None),
}
STRATEGIES: Final = (
    LOW_NODE_LOAD, "CustomPriority", "FragmentationAware", "ScaleDownBinPack", reserved_cpus.NAME,
    requested_relief.NAME,
)  # fmt: skip
_RUN_AT: Final[Mapping[str, tuple[str, ...]]] = {
    "deschedule": (), "balance": STRATEGIES,
    "evict": (MIGRATION_CONTROLLER,), "filter": (MIGRATION_CONTROLLER,),
}  # fmt: skip
_KNOWN: Final = (LOW_NODE_LOAD, *_PLUGINS)


class PluginName(msgspec.Struct, frozen=True, kw_only=True):
    name: str


class PluginSet(msgspec.Struct, frozen=True, kw_only=True):
    enabled: tuple[PluginName, ...] = ()
    disabled: tuple[PluginName, ...] = ()


class Plugins(msgspec.Struct, frozen=True, kw_only=True):
    """The plugins of the extension points."""

    deschedule: PluginSet = PluginSet()
    balance: PluginSet = PluginSet()
    evict: PluginSet = PluginSet()
    filter: PluginSet = PluginSet()


class PluginConfig(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    args: Annotated[Any, Meta(title="an object")] = msgspec.UNSET


class _ProfileKeys(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str = ""
    node_selector: Selector | None = None
    plugins: Plugins = Plugins()
    plugin_config: tuple[PluginConfig, ...] = ()


class ClientConnection(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    kubeconfig: str = ""
    accept_content_types: str = ""
    content_type: str = ""
    qps: float = 50.0
    burst: int = 100


class LeaderElection(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    leader_elect: bool = True
    lease_duration_seconds: Seconds = msgspec.field(default=15.0, name="leaseDuration")
    renew_deadline_seconds: Seconds = msgspec.field(default=10.0, name="renewDeadline")
    retry_period_seconds: Seconds = msgspec.field(default=2.0, name="retryPeriod")
    resource_lock: str = "leases"
    resource_name: str = "koord-descheduler"
    resource_namespace: str = "koordinator-system"


class ConfigurationKeys(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The keys of a DeschedulerConfiguration, except for the plugins of its profiles."""

    api_version: Annotated[str, Meta(title=VERSION, description="required")] = ""
    kind: Annotated[str, Meta(title=KIND, description="required")] = ""
    descheduling_interval_seconds: Annotated[
        Seconds,
        Meta(description="time between two plans for a node, and cycle of the caps; 0: 2m"),
    ] = msgspec.field(default=0.0, name="deschedulingInterval")
    dry_run: Annotated[bool, Meta(description="decide, and evict nothing")] = False
    node_selector: Annotated[
        Selector | None,
        Meta(title="a label selector", description="other nodes are not looked at"),
    ] = None
    most_evictions: Annotated[
        Count | None, Meta(description="pods that a plan evicts; 0: none, unset: no limit")
    ] = msgspec.field(default=None, name="maxNoOfPodsToEvictTotal")
    most_evictions_per_node: Annotated[Count | None, Meta(description="likewise per node")] = (
        msgspec.field(default=None, name="maxNoOfPodsToEvictPerNode")
    )
    most_evictions_per_namespace: Annotated[
        Count | None, Meta(description="likewise per namespace")
    ] = msgspec.field(default=None, name="maxNoOfPodsToEvictPerNamespace")
    profiles: Annotated[
        tuple[Any, ...],
        Meta(
            title="a list of `name`, `nodeSelector`, `plugins` and `pluginConfig`",
            description="the plugins and their arguments",
        ),
    ] = ()
    client_connection: Annotated[
        ClientConnection | None,
        Meta(title="an object", description="accepted: `kubernetes.*` of the settings hold"),
    ] = None
    leader_election: Annotated[
        LeaderElection | None,
        Meta(title="an object", description="accepted: Springtide's Leases hold"),
    ] = None
    enable_profiling: Annotated[bool, Meta(description="accepted")] = True
    enable_contention_profiling: Annotated[bool, Meta(description="accepted")] = True
    healthz_bind_address: Annotated[str, Meta(description="accepted")] = ""
    metrics_bind_address: Annotated[
        str, Meta(description="accepted: `metrics_port` of each role holds")
    ] = ""

    @property
    def interval_seconds(self) -> float:
        """Time between two plans, and the cycle of caps."""
        return self.descheduling_interval_seconds or _DEFAULT_INTERVAL_SECONDS


class Profile(NamedTuple):
    """A profile in force: its enabled plugins by extension point, and arguments by plugin."""

    name: str
    node_selector: Selector | None
    enabled: Mapping[str, tuple[str, ...]]
    low_node_load: LowNodeLoad | None
    args: Mapping[str, PluginArgs]

    @property
    def migration(self) -> MigrationControllerArgs:
        """Who may be evicted, and how many."""
        args: Any = self.args.get(MIGRATION_CONTROLLER)
        return MigrationControllerArgs() if args is None else args


class Descheduling(NamedTuple):
    """A configuration in force; `unused` are keys for which Springtide's settings hold."""

    keys: ConfigurationKeys
    profiles: tuple[Profile, ...]
    unused: tuple[str, ...] = ()

    @property
    def low_node_load(self) -> LowNodeLoad | None:
        """The LowNodeLoad whose thresholds detect hot nodes: the first; None if it is paused."""
        low = None if self.detecting is None else self.detecting.low_node_load
        return None if low is None or low.args.paused else low

    @property
    def node_selectors(self) -> tuple[Selector, ...]:
        """The selectors that all have to select a node; `NOTHING` if one is invalid."""
        profile = None if self.detecting is None else self.detecting.node_selector
        return tuple(each for each in (self.keys.node_selector, profile) if each is not None)

    @property
    def detecting(self) -> Profile | None:
        """The first profile with LowNodeLoad."""
        return next((p for p in self.profiles if p.low_node_load is not None), None)


Read = tuple[Descheduling | None, tuple[PolicyProblem, ...]]
"""The configuration in force, None if there is none to be read, and the problems."""
NO_DESCHEDULING: Final = Descheduling(ConfigurationKeys(), ())


def load_descheduling(data: Mapping[str, Any]) -> Read:
    """Read the configuration in the data of its ConfigMap; without the key it is empty."""
    # Nothing else of the ConfigMap is read, so no other key can be meant.
    unknown = f"unknown key (is {CONFIG_MAP_KEY} meant?)"
    problems = tuple(
        PolicyProblem(
            f"ConfigMap, {shown(key)}", "unknown key" if CONFIG_MAP_KEY in data else unknown
        )
        for key in list(data)[:_MOST_PROBLEMS]
        if key != CONFIG_MAP_KEY
    )
    text = data.get(CONFIG_MAP_KEY, "")
    if not isinstance(text, str):
        return None, (*problems, PolicyProblem(CONFIG_MAP_KEY, f"{shown(text)} is not a text"))
    if not text.strip():
        return NO_DESCHEDULING, problems
    descheduling, own_problems = read_configuration(text)
    return descheduling, (*problems, *own_problems)


def read_configuration(text: str) -> Read:
    """Read a DeschedulerConfiguration from YAML or JSON."""
    try:
        trees = [tree for tree in yaml_documents(text) if tree is not None]
    except YAML_ERRORS as error:
        problem = f"neither YAML nor JSON: {yaml_problem(error):.200}"
        return None, (PolicyProblem(KIND, problem),)
    if len(trees) != 1:
        return None, (PolicyProblem(KIND, f"has {len(trees)} documents, not 1"),)
    return read_tree(trees[0])


def read_tree(tree: Any) -> Read:
    """Read a DeschedulerConfiguration that is decoded."""
    try:
        _check_kind(tree)
    except InvalidPolicyError as error:
        return None, (PolicyProblem(KIND, error.message),)
    keys, unknown, invalid = read_struct(tree, ConfigurationKeys, "")
    problems = [*unknown, *invalid]
    profiles = []
    for i, profile_tree in enumerate(keys.profiles):
        profile, profile_problems = _read_profile(profile_tree, i, keys)
        profiles.append(profile)
        problems += profile_problems
    names = [profile.name for profile in profiles]
    for i, name in enumerate(names):
        if not name or name in names[:i]:
            text = f"{name!r:.60} is there twice" if name else "is missing"
            problems.append(PolicyProblem(f"profiles[{i}].name", text))
    if len([profile for profile in profiles if profile.low_node_load]) > 1:
        text = f"hot nodes are those of the first profile with {LOW_NODE_LOAD}"
        problems.append(PolicyProblem("profiles", text, in_force=True))
    if unknown or invalid:
        keys = msgspec.structs.replace(keys, dry_run=True)
        problems.append(PolicyProblem(KIND, "nothing is evicted until it is corrected", True))
    unused = tuple(key for key in _UNUSED if key in tree)
    keys = msgspec.structs.replace(keys, profiles=())
    descheduling = Descheduling(keys, tuple(profiles), unused)
    if NOTHING in descheduling.node_selectors:
        problems.append(PolicyProblem("nodeSelector", "nodes keep their last thresholds", True))
    return descheduling, _limited(problems)


def _check_kind(tree: Any) -> None:
    """Raise InvalidPolicyError if the tree is not a DeschedulerConfiguration."""
    if not isinstance(tree, Mapping):
        raise InvalidPolicyError(f"{shown(tree)} is not an object")
    if tree.get("kind") == SIGS_KIND:
        text = f"kind is {SIGS_KIND}, of kubernetes-sigs/descheduler, not {KIND}"
        raise InvalidPolicyError(f"{text}: write its thresholds as those of {LOW_NODE_LOAD}")
    for key, expected in (("kind", KIND), ("apiVersion", VERSION)):
        if tree.get(key) != expected:
            raise InvalidPolicyError(f"{key} is {shown(tree.get(key))}, not {expected}")


def _read_profile(
    tree: Any, index: int, keys: ConfigurationKeys
) -> tuple[Profile, list[PolicyProblem]]:
    where = f"profiles[{index}]"
    given, unknown, invalid = read_struct(tree, _ProfileKeys, where)
    problems = [*unknown, *invalid]
    enabled = {}
    for point, plugins in msgspec.structs.asdict(given.plugins).items():
        enabled[point] = _enabled(point, plugins)
        problems += _idle_plugins(f"{where}.plugins.{point}", point, plugins)
    low: LowNodeLoad | None = None
    args: dict[str, PluginArgs] = {}
    for i, config in enumerate(given.plugin_config):
        at, plugin = f"{where}.pluginConfig[{i}]", _PLUGINS.get(config.name)
        args_tree = {} if config.args in (None, msgspec.UNSET) else config.args
        if config.name in args or (config.name == LOW_NODE_LOAD and low is not None):
            problems.append(
                PolicyProblem(at, f"{config.name:.60} is there twice: the first counts")
            )
        elif config.name == LOW_NODE_LOAD:
            interval = keys.descheduling_interval_seconds
            low, own_problems = read_low_node_load(args_tree, f"{at}.args", interval)
            problems += own_problems
        elif plugin is None:
            problems.append(PolicyProblem(f"{at}.name", _unknown_plugin(config.name)))
        else:
            args[config.name], args_problems = _read_args(
                config.name, plugin, args_tree, f"{at}.args"
            )
            problems += args_problems
    name = given.name or ("koord-descheduler" if len(keys.profiles) == 1 else "")
    if unknown or invalid:
        problems.append(PolicyProblem(where, "evicts nothing until it is corrected", True))
        enabled = dict.fromkeys(enabled, ())
    return Profile(name, given.node_selector, enabled, low, args), problems


def _enabled(point: str, plugins: PluginSet) -> tuple[str, ...]:
    """The plugins that run at a point: Koordinator's default unless disabled, and those enabled."""
    default = _RUN_AT[point] if point in ("evict", "filter") else ()
    disabled = {plugin.name for plugin in plugins.disabled}
    names = [] if "*" in disabled else [name for name in default if name not in disabled]
    names += [plugin.name for plugin in plugins.enabled if plugin.name in _RUN_AT[point]]
    return tuple(dict.fromkeys(names))


def _idle_plugins(where: str, point: str, plugins: PluginSet) -> Iterator[PolicyProblem]:
    """Plugins that are enabled and do not run at the point."""
    for i, plugin in enumerate(plugins.enabled):
        if plugin.name in _RUN_AT[point]:
            continue
        points = [name for name, known in _RUN_AT.items() if plugin.name in known]
        text = f"{plugin.name:.60} runs only at {' and '.join(points)}"
        yield PolicyProblem(
            f"{where}.enabled[{i}]", text if points else _unknown_plugin(plugin.name)
        )


def _unknown_plugin(name: str) -> str:
    if name == "LowNodeUtilization":
        return f"{name} does not run here: {LOW_NODE_LOAD} does"
    meant = unknown_key(name, dict.fromkeys(_KNOWN)).removeprefix("unknown key")
    return f"plugin {name!r:.60} does not run here{meant}"


def _read_args(
    name: str, plugin: _Plugin, tree: Any, where: str
) -> tuple[PluginArgs, list[PolicyProblem]]:
    args, unknown, invalid = read_struct(tree, plugin.kind, where)
    problems = [*unknown, *invalid]
    problems += [PolicyProblem(child(where, key), text) for key, text in args.problems()]
    if args.kind not in ("", f"{name}Args"):
        problems.append(PolicyProblem(f"{where}.kind", f"{args.kind!r:.60} is not {name}Args"))
    if args.api_version != VERSION:
        text = f"{args.api_version!r:.60} is not {VERSION}"
        problems.append(PolicyProblem(f"{where}.apiVersion", text))
    notes = [PolicyProblem(child(where, key), text, True) for key, text in args.warnings()]
    if plugin.dry is None:
        text = f"is checked only: {_unknown_plugin(name)}"
        return args, [*problems, PolicyProblem(where, text, in_force=True)]
    if problems:
        args = msgspec.structs.replace(args, **plugin.dry)
        effect = f"{name} evicts nothing until it is corrected"
        problems.append(PolicyProblem(where, effect, in_force=True))
    return args, [*problems, *notes]


def _with_place(problem: PolicyProblem) -> PolicyProblem:
    """The problem, and where an unknown key belongs if it is a key of another object."""
    key = problem.where.rpartition(".")[2]
    if problem.text != "unknown key":
        return problem
    if key == "targetThresholds":  # of LowNodeUtilization
        return problem._replace(text="unknown key (is highThresholds meant?)")
    place = _places().get(key)
    return problem._replace(text=f"unknown key: it belongs to {place}") if place else problem


@cache
def _places() -> dict[str, str]:
    """The object of each key that one object alone has."""
    kinds: dict[str, type[msgspec.Struct]] = {
        "the top level": ConfigurationKeys,
        "a profile": _ProfileKeys,
        "anomalyCondition of LowNodeLoad": AnomalyCondition,
        f"the args of {LOW_NODE_LOAD}": LowNodeLoadArgs,
    }
    plugins = {name: plugin.kind for name, plugin in _PLUGINS.items() if plugin.dry is not None}
    kinds |= {f"the args of {name}": kind for name, kind in plugins.items()}
    places: dict[str, list[str]] = {}
    for place, kind in kinds.items():
        for key in json_keys(kind).values():
            places.setdefault(key, []).append(place)
    return {key: names[0] for key, names in places.items() if len(names) == 1}


def _limited(problems: Sequence[PolicyProblem]) -> tuple[PolicyProblem, ...]:
    unique = tuple(dict.fromkeys(_with_place(problem) for problem in problems))
    if len(unique) <= _MOST_PROBLEMS:
        return unique
    more = PolicyProblem(KIND, f"has {len(unique) - _MOST_PROBLEMS} more problems")
    return (*unique[:_MOST_PROBLEMS], more)
