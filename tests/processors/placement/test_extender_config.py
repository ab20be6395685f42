"""Generated KubeSchedulerConfigurations have no problems; problems of others are found."""

from typing import Any

import pytest

from pipeline.errors import InvalidPolicyError
from pipeline.processors.placement.extender_config import (
    BY_REQUESTS,
    GeneratorOptions,
    Mode,
    generate_config,
)
from pipeline.processors.placement.scheduler_findings import Finding, findings

HTTP = GeneratorOptions("http://extender:8888")
HTTPS = GeneratorOptions("https://extender:8888", ca_file="/etc/ca.pem")


def changed(mode: Mode = "act", **extender: Any) -> list[Finding]:
    """The problems of a good configuration with other values of its extender; None removes one."""
    tree = generate_config(HTTP._replace(mode=mode))
    result = tree["extenders"][0] | extender
    tree["extenders"] = [{key: value for key, value in result.items() if value is not None}]
    return list(findings(tree, mode))


def scored(mode: Mode = "act", **plugins: Any) -> list[Finding]:
    """The problems of a configuration whose profile has these plugins."""
    tree = generate_config(HTTP)
    tree["profiles"] = [{"plugins": plugins}]
    return list(findings(tree, mode))


@pytest.mark.parametrize("mode", ["observe", "act"])
@pytest.mark.parametrize("options", [HTTP, HTTPS])
def test_generated_configurations_have_no_problems(options: GeneratorOptions, mode: Mode) -> None:
    assert list(findings(generate_config(options._replace(mode=mode)), mode)) == []


def test_each_mode_needs_its_own_configuration() -> None:
    (observing,) = findings(generate_config(HTTP), "act")
    assert (
        "NodeResourcesFit, NodeResourcesBalancedAllocation score by requests" in observing.problem
    )
    (acting,) = findings(generate_config(HTTP._replace(mode="act")), "observe")
    assert "nothing scores by requests" in acting.problem
    assert (observing.is_refused, acting.is_refused) == (False, False)


def test_keys_of_peaks_are_spelt_as_scheduler_plugins_reads_them() -> None:
    """Its tags for JSON are malformed, so that its keys begin with a capital letter."""
    tree = generate_config(HTTP._replace(mode="act"))
    args = {"WatcherAddress": "http://extender:8888", "NodePowerModel": {}}
    tree["profiles"][0]["pluginConfig"] = [{"name": "Peaks", "args": args}]
    assert list(findings(tree, "act")) == []
    tree["profiles"][0]["pluginConfig"][0]["args"] = {"watcherAddress": "http://extender:8888"}
    (finding,) = findings(tree, "act")
    assert finding.is_refused
    assert "watcherAddress" in finding.problem
    assert finding.advice == "spell it WatcherAddress"


@pytest.mark.parametrize(
    ("stated", "where", "is_refused"),
    [
        ({"urlPrefix": "extender:8888"}, "urlPrefix", True),
        ({"urlPrefix": None}, "urlPrefix", True),
        ({"enableHTTPS": True}, "enableHTTPS", False),
        ({"filterVerb": "predicates"}, "filterVerb", True),
        ({"filterVerb": None}, "filterVerb", False),
        ({"prioritizeVerb": None}, "prioritizeVerb", False),
        ({"preemptVerb": None}, "preemptVerb", False),
        ({"bindVerb": "bind"}, "bindVerb", True),
        ({"weight": 0}, "weight", True),
        ({"weight": None}, "weight", True),
        ({"nodeCacheCapable": False}, "nodeCacheCapable", False),
        ({"nodeCacheCapable": None}, "nodeCacheCapable", False),
        ({"ignorable": None}, "ignorable", False),
        ({"httpTimeout": None}, "httpTimeout", False),
        ({"httpTimeout": "1m"}, "httpTimeout", False),
        ({"httpTimeout": "0s"}, "httpTimeout", False),
        ({"httpTimeout": "-1s"}, "httpTimeout", False),
        ({"httpTimeout": "1"}, "httpTimeout", True),
        ({"urlPrefix": "http://"}, "urlPrefix", True),
        ({"urlPrefix": "http://a b"}, "urlPrefix", True),
        ({"urlPrefix": "http://[::1"}, "urlPrefix", True),
        ({"urlPrefix": "http://extender:8888/api"}, "urlPrefix", False),
        # The scheduler adds one slash, and what has two is no path of ours.
        ({"filterVerb": "/filter"}, "filterVerb", True),
        ({"filterVerb": "filter/"}, "filterVerb", True),
        ({"managedResources": [{"name": "example.com/gpu"}]}, "managedResources", False),
    ],
)
def test_problems_of_an_extender_are_found(
    stated: dict[str, Any], where: str, is_refused: bool
) -> None:
    (result,) = changed(**stated)
    assert result.where == f"extenders[0].{where}"
    assert result.is_refused == is_refused
    assert result.advice


def test_valid_durations_and_addresses_pass() -> None:
    assert changed(urlPrefix="http://extender:8888/", managedResources=[]) == []
    for duration in ("0s500ms", ".5s", "900000\u03bcs", "900000\u00b5s"):
        assert changed(httpTimeout=duration) == [], duration


@pytest.mark.parametrize("name", ["cpu", "memory", "kubernetes.io/batch-cpu", None, 3])
def test_only_extended_resources_can_be_managed(name: Any) -> None:
    result = changed(managedResources=[{"name": name}])
    assert [finding.is_refused for finding in result] == [True, False]


def test_https_needs_a_ca() -> None:
    """Without a CA kube-scheduler takes any certificate."""
    tree = generate_config(HTTPS._replace(mode="act"))
    tree["extenders"][0]["tlsConfig"] = {"caData": "x"}
    assert list(findings(tree, "act")) == []
    for tls in ({}, {"insecure": True}, {"insecure": False}, {"certFile": "mine.pem"}):
        tree["extenders"][0]["tlsConfig"] = tls
        (result,) = findings(tree, "act")
        assert result.where == "extenders[0].tlsConfig"
        assert "not verified" in result.problem
    tree["extenders"][0]["tlsConfig"] = {"insecure": True, "caFile": "/ca.pem"}
    (result,) = findings(tree, "act")
    assert result.is_refused


OTHER = {
    "urlPrefix": "http://gpu:1/scheduler", "filterVerb": "filter", "bindVerb": "bind",
    "prioritizeVerb": "prioritize", "weight": 100, "httpTimeout": "30s",
    "managedResources": [{"name": "example.com/gpu", "ignoredByScheduler": True}],
}  # fmt: skip


def test_other_extenders_are_checked_for_what_is_refused() -> None:
    tree = generate_config(GeneratorOptions("http://springtide:8888", "act"))
    tree["extenders"].insert(0, OTHER)
    assert list(findings(tree, "act")) == []
    # Theirs have nothing to do with how much ours counts.
    tree["profiles"] = []
    (result,) = findings(tree, "act")
    assert "a step of the extender's score is 10:" in result.problem
    tree["extenders"][0] = OTHER | {"weight": 0, "httpTimeout": "soon"}
    assert [finding.where for finding in findings(tree, "act") if finding.is_refused] == [
        "extenders[0].weight", "extenders[0].httpTimeout",
    ]  # fmt: skip


def test_an_ambiguous_extender_is_reported() -> None:
    tree = generate_config(GeneratorOptions("http://ours:8888", "act"))
    tree["extenders"].append(OTHER)
    (result,) = findings(tree, "act")
    assert "no address contains springtide" in result.problem
    assert not result.is_refused
    assert list(findings(tree, "act", "http://ours:8888/")) == []
    (result,) = findings(tree, "act", "http://nobody:1")
    assert result.is_refused


def test_an_extender_named_twice_is_reported() -> None:
    tree = generate_config(GeneratorOptions("http://springtide:8888", "act"))
    tree["extenders"] *= 2
    (result,) = findings(tree, "act")
    assert "there 2 times" in result.problem


def test_versions_and_keys_of_another_scheduler_are_refused() -> None:
    changes: tuple[dict[str, Any], ...] = (
        {"apiVersion": "kubescheduler.config.k8s.io/v1beta3"}, {"zzz": 1},
        {"parallelism": 0}, {"parallelism": "x"}, {"profiles": [{"plugins": {"zzz": {}}}]},
        {"percentageOfNodesToScore": 300}, {"percentageOfNodesToScore": float("nan")},
        {"profiles": [{"percentageOfNodesToScore": -1}]},
        {"profiles": [{"schedulerName": "a"}, {"schedulerName": "a"}]},
        {"profiles": [{}, {}]},
        {"profiles": [{"plugins": {"reserve": [{"enabled": []}]}}]},
    )  # fmt: skip
    for change in changes:
        result = list(findings(generate_config(HTTP) | change, "observe"))
        assert [finding.is_refused for finding in result] == [True], change


def test_a_configuration_without_extenders_is_refused() -> None:
    tree = generate_config(HTTP._replace(mode="act"))
    del tree["extenders"]
    (result,) = findings(tree, "act")
    assert result.is_refused


@pytest.mark.parametrize(
    ("plugins", "on"),
    [
        ({}, BY_REQUESTS),
        ({"score": {"disabled": [{"name": "*"}]}}, ()),
        ({"score": {"disabled": [{"name": "NodeResourcesFit"}]}}, BY_REQUESTS[1:]),
        # As the tests of a burst have it: all off, and one on again.
        (
            {"score": {"disabled": [{"name": "*"}], "enabled": [{"name": "NodeResourcesFit"}]}},
            BY_REQUESTS[:1],
        ),
        (
            {
                "multiPoint": {
                    "disabled": [{"name": "*"}],
                    "enabled": [{"name": "NodeResourcesFit", "weight": 3}],
                },
                "queueSort": {"enabled": [{"name": "PrioritySort"}]},
                "bind": {"enabled": [{"name": "DefaultBinder"}]},
            },
            BY_REQUESTS[:1],
        ),
        ({"reserve": {"disabled": [{"name": "*"}]}}, BY_REQUESTS),
    ],
)
def test_plugins_that_score_by_requests_are_found(
    plugins: dict[str, Any], on: tuple[str, ...]
) -> None:
    result = scored(**plugins)
    assert [finding.problem.split(" score by")[0] for finding in result] == (
        [", ".join(on)] if on else []
    )
    assert bool(scored("observe", **plugins)) == (not on)


def test_required_plugins_must_stay_enabled() -> None:
    offs: tuple[dict[str, Any], ...] = (
        {"multiPoint": {"disabled": [{"name": finding} for finding in BY_REQUESTS]}},
        {"filter": {"disabled": [{"name": "*"}]}, "score": {"disabled": [{"name": "*"}]}},
    )
    for off in offs:
        (result,) = scored(**off)
        assert "does not run at filter" in result.problem
    (result,) = scored(multiPoint={"disabled": [{"name": "*"}]})
    assert result.is_refused
    assert "queueSort and bind" in result.problem


def test_weights_decide_whether_scores_compete() -> None:
    heavy = {"enabled": [{"name": "NodeResourcesFit", "weight": 7}]}
    (result,) = scored(score={"disabled": [{"name": "*"}], **heavy})
    assert "up to 700 points, where a step of the extender's score is 10" in result.problem
    for weight, is_outvoted in ((19, True), (20, False)):
        tree = generate_config(HTTP._replace(weight=weight))
        assert bool(list(findings(tree, "act"))) == is_outvoted


def test_plugins_of_the_extender_are_refused_in_the_scheduler() -> None:
    """But of one that was built with them."""
    (result,) = scored("observe", multiPoint={"enabled": [{"name": "LoadAwareScheduling"}]})
    assert not result.is_refused
    assert "extender.scheduler_config_file" in result.advice


@pytest.mark.parametrize(
    "tree",
    [
        None,
        [],
        {"kind": "Pod"},
        {"kind": "ConfigMap", "apiVersion": "v1", "data": {}},
        {"apiVersion": "v1", "kind": "KubeSchedulerConfiguration"},
        {**generate_config(HTTP), "extender": []},
        {**generate_config(HTTP), "extenders": {}},
        {**generate_config(HTTP), "extenders": [3]},
        {**generate_config(HTTP), "extenders": [{"urlprefix": "http://x"}]},
        {**generate_config(HTTP), "extenders": [{"weight": "1"}]},
        {**generate_config(HTTP), "profiles": [{"plugins": {"scores": {}}}]},
    ],
)
def test_other_documents_are_refused(tree: Any) -> None:
    with pytest.raises(InvalidPolicyError):
        list(findings(tree, "act"))
