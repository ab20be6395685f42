"""What kube-scheduler is started with: generated ones are right, and what is wrong is named."""

from typing import Any

import pytest

from pipeline.errors import InvalidPolicyError
from pipeline.processors.placement.scheduler_side import (
    BY_REQUESTS,
    Finding,
    Mode,
    Wanted,
    findings,
    generated,
)

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
        ({"httpTimeout": "1"}, "httpTimeout", True),
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


def test_a_path_may_have_slashes_and_a_timeout_several_parts() -> None:
    assert changed(filterVerb="/filter/", httpTimeout="0s500ms", managedResources=[]) == []


def test_https_needs_somebody_to_trust() -> None:
    tree = generated(HTTPS._replace(mode="act"))
    for trusted in ({"caData": "x"}, {"insecure": True}):
        tree["extenders"][0]["tlsConfig"] = trusted
        assert list(findings(tree, "act")) == []
    tree["extenders"][0]["tlsConfig"] = {"certFile": "mine.pem"}
    (found,) = findings(tree, "act")
    assert found.where == "extenders[0].tlsConfig"


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
        ({"multiPoint": {"disabled": [{"name": "*"}]}}, ()),
        ({"multiPoint": {"disabled": [{"name": "NodeResourcesFit"}]}}, BY_REQUESTS[1:]),
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
                }
            },
            BY_REQUESTS[:1],
        ),
        ({"filter": {"disabled": [{"name": "*"}]}}, BY_REQUESTS),
    ],
)
def test_scores_by_requests_are_found_as_the_scheduler_has_them(
    plugins: dict[str, Any], on: tuple[str, ...]
) -> None:
    found = scored(**plugins)
    assert [one.says.split(" score by")[0] for one in found] == ([", ".join(on)] if on else [])
    assert bool(scored("observe", **plugins)) == (not on)


def test_their_points_are_reckoned_with_their_weights() -> None:
    heavy = {"enabled": [{"name": "NodeResourcesFit", "weight": 7}]}
    (found,) = scored(score={"disabled": [{"name": "*"}], **heavy})
    assert "up to 700 points, where a step of the extender's score is 10" in found.says
    for weight, is_outvoted in ((19, True), (20, False)):
        tree = generated(HTTP._replace(weight=weight))
        assert bool(list(findings(tree, "act"))) == is_outvoted


def test_plugins_that_run_here_are_none_of_the_schedulers() -> None:
    found = scored("observe", multiPoint={"enabled": [{"name": "LoadAwareScheduling"}]})
    assert [one.is_refused for one in found] == [True]
    assert "extender.scheduler_config_file" in found[0].todo


@pytest.mark.parametrize(
    "tree",
    [
        None,
        [],
        {"kind": "Pod"},
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
