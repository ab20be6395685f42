"""What kube-scheduler is started with: generated ones are right, and what is wrong is named."""

from typing import Any

import pytest

from pipeline.errors import InvalidPolicyError
from pipeline.processors.placement.extender_config import BY_REQUESTS, Mode, Wanted, generated
from pipeline.processors.placement.scheduler_findings import Finding, findings

HTTP = Wanted("http://extender:8888")
HTTPS = Wanted("https://extender:8888", ca_file="/etc/ca.pem")


def changed(mode: Mode = "act", **extender: Any) -> list[Finding]:
    """What is found in a good configuration whose extender says this instead; None: not at all."""
    tree = generated(HTTP._replace(mode=mode))
    found = tree["extenders"][0] | extender
    tree["extenders"] = [{key: value for key, value in found.items() if value is not None}]
    return list(findings(tree, mode))


def scored(mode: Mode = "act", **plugins: Any) -> list[Finding]:
    """What is found where the profile says this of plugins."""
    tree = generated(HTTP)
    tree["profiles"] = [{"plugins": plugins}]
    return list(findings(tree, mode))


@pytest.mark.parametrize("mode", ["observe", "act"])
@pytest.mark.parametrize("wanted", [HTTP, HTTPS])
def test_nothing_is_found_in_what_was_generated(wanted: Wanted, mode: Mode) -> None:
    assert list(findings(generated(wanted._replace(mode=mode)), mode)) == []


def test_each_mode_needs_its_own() -> None:
    (of_observe,) = findings(generated(HTTP), "act")
    assert "NodeResourcesFit, NodeResourcesBalancedAllocation score by requests" in of_observe.says
    (of_act,) = findings(generated(HTTP._replace(mode="act")), "observe")
    assert "nothing scores by requests" in of_act.says
    assert not of_observe.is_refused
    assert not of_act.is_refused


@pytest.mark.parametrize(
    ("said", "where", "is_refused"),
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
def test_what_is_wrong_with_an_extender_is_named(
    said: dict[str, Any], where: str, is_refused: bool
) -> None:
    (found,) = changed(**said)
    assert found.where == f"extenders[0].{where}"
    assert found.is_refused == is_refused
    assert found.todo


def test_a_time_out_may_have_several_parts_and_an_address_a_slash() -> None:
    assert changed(urlPrefix="http://extender:8888/", httpTimeout="0s500ms") == []
    assert changed(httpTimeout=".5s", managedResources=[]) == []
    assert changed(httpTimeout="900000\u03bcs") == changed(httpTimeout="900000\u00b5s") == []


@pytest.mark.parametrize("name", ["cpu", "memory", "kubernetes.io/batch-cpu", None, 3])
def test_what_is_no_extended_resource_is_refused(name: Any) -> None:
    found = changed(managedResources=[{"name": name}])
    assert [one.is_refused for one in found] == [True, False]


def test_a_certificate_is_checked_against_somebody() -> None:
    """Without a CA kube-scheduler takes any certificate."""
    tree = generated(HTTPS._replace(mode="act"))
    tree["extenders"][0]["tlsConfig"] = {"caData": "x"}
    assert list(findings(tree, "act")) == []
    for tls in ({}, {"insecure": True}, {"insecure": False}, {"certFile": "mine.pem"}):
        tree["extenders"][0]["tlsConfig"] = tls
        (found,) = findings(tree, "act")
        assert found.where == "extenders[0].tlsConfig"
        assert "not checked" in found.says
    tree["extenders"][0]["tlsConfig"] = {"insecure": True, "caFile": "/ca.pem"}
    (found,) = findings(tree, "act")
    assert found.is_refused


OTHER = {
    "urlPrefix": "http://gpu:1/scheduler", "filterVerb": "filter", "bindVerb": "bind",
    "prioritizeVerb": "prioritize", "weight": 100, "httpTimeout": "30s",
    "managedResources": [{"name": "example.com/gpu", "ignoredByScheduler": True}],
}  # fmt: skip


def test_extenders_of_others_are_only_looked_at_for_what_is_refused() -> None:
    tree = generated(Wanted("http://springtide:8888", "act"))
    tree["extenders"].insert(0, OTHER)
    assert list(findings(tree, "act")) == []
    # Theirs have nothing to do with how much ours counts.
    tree["profiles"] = []
    (found,) = findings(tree, "act")
    assert "a step of the extender's score is 10:" in found.says
    tree["extenders"][0] = OTHER | {"weight": 0, "httpTimeout": "soon"}
    assert [one.where for one in findings(tree, "act") if one.is_refused] == [
        "extenders[0].weight", "extenders[0].httpTimeout",
    ]  # fmt: skip


def test_which_extender_is_meant_may_have_to_be_said() -> None:
    tree = generated(Wanted("http://ours:8888", "act"))
    tree["extenders"].append(OTHER)
    (found,) = findings(tree, "act")
    assert "which of them" in found.says
    assert not found.is_refused
    assert list(findings(tree, "act", "http://ours:8888/")) == []
    (found,) = findings(tree, "act", "http://nobody:1")
    assert found.is_refused


def test_an_extender_that_is_there_twice_counts_twice() -> None:
    tree = generated(Wanted("http://springtide:8888", "act"))
    tree["extenders"] *= 2
    (found,) = findings(tree, "act")
    assert "there 2 times" in found.says


def test_what_the_scheduler_of_today_does_not_read_is_refused() -> None:
    for change in (
        {"apiVersion": "kubescheduler.config.k8s.io/v1beta3"}, {"zzz": 1},
        {"parallelism": 0}, {"parallelism": "x"}, {"profiles": [{"plugins": {"zzz": {}}}]},
        {"percentageOfNodesToScore": 300}, {"percentageOfNodesToScore": float("nan")},
        {"profiles": [{"percentageOfNodesToScore": -1}]},
        {"profiles": [{"schedulerName": "a"}, {"schedulerName": "a"}]},
        {"profiles": [{}, {}]},
        {"profiles": [{"plugins": {"reserve": [{"enabled": []}]}}]},
    ):  # fmt: skip
        found = list(findings(generated(HTTP) | change, "observe"))
        assert [one.is_refused for one in found] == [True], change


def test_without_extenders_nobody_is_asked() -> None:
    tree = generated(HTTP._replace(mode="act"))
    del tree["extenders"]
    (found,) = findings(tree, "act")
    assert found.is_refused


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
def test_scores_by_requests_are_found_as_the_scheduler_has_them(
    plugins: dict[str, Any], on: tuple[str, ...]
) -> None:
    found = scored(**plugins)
    assert [one.says.split(" score by")[0] for one in found] == ([", ".join(on)] if on else [])
    assert bool(scored("observe", **plugins)) == (not on)


def test_what_must_run_is_not_to_be_taken_away_with_it() -> None:
    for off in (
        {"multiPoint": {"disabled": [{"name": one} for one in BY_REQUESTS]}},
        {"filter": {"disabled": [{"name": "*"}]}, "score": {"disabled": [{"name": "*"}]}},
    ):
        (found,) = scored(**off)
        assert "does not run at filter" in found.says
    (found,) = scored(multiPoint={"disabled": [{"name": "*"}]})
    assert found.is_refused
    assert "queueSort and bind" in found.says


def test_their_points_are_reckoned_with_their_weights() -> None:
    heavy = {"enabled": [{"name": "NodeResourcesFit", "weight": 7}]}
    (found,) = scored(score={"disabled": [{"name": "*"}], **heavy})
    assert "up to 700 points, where a step of the extender's score is 10" in found.says
    for weight, is_outvoted in ((19, True), (20, False)):
        tree = generated(HTTP._replace(weight=weight))
        assert bool(list(findings(tree, "act"))) == is_outvoted


def test_plugins_that_run_here_are_none_of_the_schedulers() -> None:
    """But of one that was built with them."""
    (found,) = scored("observe", multiPoint={"enabled": [{"name": "LoadAwareScheduling"}]})
    assert not found.is_refused
    assert "extender.scheduler_config_file" in found.todo


@pytest.mark.parametrize(
    "tree",
    [
        None,
        [],
        {"kind": "Pod"},
        {"kind": "ConfigMap", "apiVersion": "v1", "data": {}},
        {"apiVersion": "v1", "kind": "KubeSchedulerConfiguration"},
        {**generated(HTTP), "extender": []},
        {**generated(HTTP), "extenders": {}},
        {**generated(HTTP), "extenders": [3]},
        {**generated(HTTP), "extenders": [{"urlprefix": "http://x"}]},
        {**generated(HTTP), "extenders": [{"weight": "1"}]},
        {**generated(HTTP), "profiles": [{"plugins": {"scores": {}}}]},
    ],
)
def test_what_is_no_configuration_is_refused(tree: Any) -> None:
    with pytest.raises(InvalidPolicyError):
        list(findings(tree, "act"))
