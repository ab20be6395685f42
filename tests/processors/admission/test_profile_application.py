"""Profiles applied to new pods."""

import copy
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pipeline.errors import InvalidRecordError
from pipeline.processors.admission.colocation_profile import Profile
from pipeline.processors.admission.copied_values import COPIED_ANNOTATION
from pipeline.processors.admission.json_patch import json_patch
from pipeline.processors.admission.profile_application import (
    MOST_POD_BYTES,
    SEED_ANNOTATION,
    Cluster,
    Request,
    apply_profiles,
    is_drawn,
)
from tests.processors.admission.pods import CLASSES, applied, container, pod, profile

BATCH: dict[str, Any] = {"qosClass": "BE", "priorityClassName": "koord-batch"}
MID: dict[str, Any] = {"qosClass": "BE", "priorityClassName": "koord-mid"}


def test_pod_of_a_batch_profile_is_translated() -> None:
    given = pod(container(requests={"cpu": "500m"}, limits={"cpu": "1", "memory": "1Gi"}))
    given["spec"]["containers"][0]["resources"]["requests"]["memory"] = "1Gi"
    untouched = copy.deepcopy(given)
    result = applied(
        given,
        profile(
            **BATCH, selector={"matchLabels": {"app": "a"}}, koordinatorPriority=1111,
            schedulerName="koord-scheduler", labels={"tier": "batch"}, annotations={"x": "y z"},
        ),
    )  # fmt: skip
    assert (result.applied, result.not_applied) == (("p",), {})
    assert given == untouched
    assert result.pod["metadata"]["labels"] == {
        "app": "a", "tier": "batch", "koordinator.sh/qosClass": "BE",
        "koordinator.sh/priority": "1111",
    }  # fmt: skip
    spec = result.pod["spec"]
    assert (spec["schedulerName"], spec["priorityClassName"]) == ("koord-scheduler", "koord-batch")
    # Else the API server's own plugin refuses the pod.
    assert (spec["priority"], spec["preemptionPolicy"]) == (5000, "Never")
    amounts = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "1Gi"}
    assert spec["containers"][0]["resources"] == {
        "requests": amounts, "limits": {**amounts, "kubernetes.io/batch-cpu": "1000"},
    }  # fmt: skip
    notes = result.pod["metadata"]["annotations"]
    assert notes["x"] == "y z"
    assert '"kubernetes.io/batch-cpu":"500"' in notes["node.koordinator.sh/extended-resource-spec"]


def test_mid_contract() -> None:
    result = applied(pod(container(limits={"cpu": "2", "memory": "1Gi"})), profile(**MID))
    spec = result.pod["spec"]
    assert (spec["priority"], spec["priorityClassName"]) == (7000, "koord-mid")
    assert result.pod["metadata"]["labels"]["koordinator.sh/qosClass"] == "BE"
    amounts = {"kubernetes.io/mid-cpu": "2000", "kubernetes.io/mid-memory": "1Gi"}
    assert spec["containers"][0]["resources"] == {"requests": amounts, "limits": amounts}


@pytest.mark.parametrize(
    ("selectors", "namespace", "matches"),
    [
        ({}, "default", True),
        ({"selector": {}}, "default", True),
        ({"selector": {"matchLabels": {"app": "b"}}}, "default", False),
        ({"namespaceSelector": {}}, "default", True),
        ({"namespaceSelector": {"matchLabels": {"team": "shop"}}}, "shop", True),
        ({"namespaceSelector": {"matchLabels": {"team": "shop"}}}, "default", False),
        ({"namespaceSelector": {"matchLabels": {"team": "shop"}},
          "selector": {"matchLabels": {"app": "b"}}}, "shop", False),
    ],
)  # fmt: skip
def test_both_selectors_must_match(
    selectors: dict[str, Any], namespace: str, matches: bool
) -> None:
    result = applied(pod(), profile(**selectors, labels={"x": "y"}), namespace=namespace)
    assert (result.applied == ("p",)) is matches
    assert (result.pod != pod()) is matches


def test_profile_of_namespaces_is_not_applied_where_the_namespace_is_unknown() -> None:
    """Its labels are not empty: they are unknown."""
    rule = profile(namespaceSelector={"matchExpressions": [
        {"key": "team", "operator": "DoesNotExist"},
    ]})  # fmt: skip
    result = applied(pod(), rule, namespace="new")
    assert (result.applied, result.pod) == ((), pod())
    assert result.not_applied == {"p": "namespace new is not known yet"}


def test_profiles_apply_in_the_order_of_their_names_to_the_pod_as_it_was_created() -> None:
    first = profile("a", labels={"x": "a", "app": "changed"}, qosClass="LS")
    second = profile("b", labels={"x": "b"}, selector={"matchLabels": {"app": "a"}}, **BATCH)
    third = profile("c", selector={"matchLabels": {"x": "b"}}, labels={"x": "c"})
    result = applied(pod(), third, second, first)
    assert result.applied == ("a", "b")
    labels = result.pod["metadata"]["labels"]
    assert labels == {"app": "changed", "x": "b", "koordinator.sh/qosClass": "BE"}


def test_keys_are_copied_and_suffixes_appended_once() -> None:
    rule = profile(
        labelKeysMapping={"app": "copy", "none": "never"}, labels={"app": "b"},
        annotationKeysMapping={"x": "y"}, annotations={"x": "1"},
        labelSuffixes={"copy": "-v2", "missing": "-v2"},
    )  # fmt: skip
    once = applied(pod(), rule).pod
    assert once["metadata"]["labels"] == {"app": "b", "copy": "b-v2"}
    assert once["metadata"]["annotations"] == {"x": "1", "y": "1"}
    assert applied(once, profile(labelSuffixes={"copy": "-v2"})).pod == once


def test_suffixes_of_several_profiles_are_appended_once_each() -> None:
    rules = [profile(name, labelSuffixes={"app": suffix}) for name, suffix in
             (("a", "-x"), ("b", "-y"), ("c", "-x"))]  # fmt: skip
    once = applied(pod(), *rules).pod
    assert once["metadata"]["labels"]["app"] == "a-x-y-x"
    assert applied(once, *rules).pod == once


SUFFIX = st.text("-ab", min_size=1, max_size=3).filter(lambda text: not text.endswith("-"))


@given(
    SUFFIX.filter(lambda text: not text.startswith("-")),
    st.lists(st.tuples(SUFFIX, st.booleans()), min_size=1, max_size=4),
)
def test_second_review_appends_no_suffix(value: str, suffixes: list[tuple[str, bool]]) -> None:
    """Whatever the suffixes end with, and whichever profile cannot be applied."""
    rules = [
        profile(
            f"p{i}", labelSuffixes={"app": suffix}, priorityClassName="none" if is_invalid else ""
        )
        for i, (suffix, is_invalid) in enumerate(suffixes)
    ]  # fmt: skip
    once = applied(pod(labels={"app": value}), *rules)
    assert len(once.not_applied) == sum(is_invalid for _, is_invalid in suffixes)
    ends = "".join(suffix for suffix, is_invalid in suffixes if not is_invalid)
    assert once.pod["metadata"]["labels"]["app"] in (value, value + ends)
    assert once.pod["metadata"]["labels"]["app"].endswith(ends)
    assert applied(once.pod, *rules) == once


KEYS = st.sampled_from(["app", "copy", "team"])
TEXTS = st.dictionaries(KEYS, st.sampled_from(["a", "a-x", "a-x-y"]), max_size=2)
MAPPINGS = st.dictionaries(KEYS, KEYS, max_size=3)
METADATA = st.fixed_dictionaries({
    "labels": TEXTS, "annotations": TEXTS, "labelKeysMapping": MAPPINGS,
    "annotationKeysMapping": MAPPINGS, "patch": TEXTS.map(lambda of: {"metadata": {"labels": of}}),
    "labelSuffixes": st.dictionaries(KEYS, st.sampled_from(["-x", "-y", "x"]), max_size=2),
    "priorityClassName": st.sampled_from(["", "", "koord-batch", "none"]),
})  # fmt: skip
"""Changes of labels and annotations; a profile of the class "none" cannot be applied."""


@given(labels=TEXTS, annotations=TEXTS, specs=st.lists(METADATA, min_size=1, max_size=3))
def test_a_second_review_changes_nothing(
    labels: dict[str, str], annotations: dict[str, str], specs: list[dict[str, Any]]
) -> None:
    rules = [profile(f"p{number}", **spec) for number, spec in enumerate(specs)]
    given = pod(labels=labels)
    given["metadata"]["annotations"] = annotations
    once = applied(given, *rules)
    again = applied(once.pod, *rules, uid="r2")
    assert (again.pod, again.applied) == (once.pod, once.applied)


def test_a_copied_label_is_the_one_without_the_suffix_however_often_it_is_reviewed() -> None:
    rule = profile(labelKeysMapping={"app": "copy"}, labelSuffixes={"app": "-x"})
    once = applied(pod(labels={"app": "a"}), rule)
    assert once.pod["metadata"]["labels"] == {"app": "a-x", "copy": "a"}
    assert applied(once.pod, rule).pod == once.pod
    # What another webhook has set since is copied.
    once.pod["metadata"]["labels"]["app"] = "b"
    assert applied(once.pod, rule).pod["metadata"]["labels"] == {"app": "b-x", "copy": "b"}
    plain = profile(labelKeysMapping={"app": "copy"})
    annotations = applied(pod(labels={"app": "a"}), plain).pod["metadata"].get("annotations", {})
    assert COPIED_ANNOTATION not in annotations


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"labels": {"app": 1}}', "x" * 100_000, '{"x":' + "[" * 100_000]
)
def test_an_annotation_that_somebody_else_wrote_is_no_error(text: str) -> None:
    given = pod(labels={"app": "a"})
    given["metadata"]["annotations"] = {COPIED_ANNOTATION: text}
    result = applied(given, profile(labelSuffixes={"app": "-x"}))
    assert result.pod["metadata"]["labels"] == {"app": "a-x"}


def test_own_annotations_are_left_out_of_a_pod_whose_annotations_have_the_most_bytes() -> None:
    given = pod(labels={"app": "a"}, name="")
    given["metadata"]["annotations"] = {"x": "y" * (256 * 2**10 - 1)}
    rule = profile(
        labelKeysMapping={"app": "copy"}, labelSuffixes={"app": "-x"}, probability="99%",
        annotations={"x": "y" * (256 * 2**10 - 1)}, priorityClassName="koord-batch",
    )  # fmt: skip
    result = applied(given, rule)
    assert result.applied == ("p",)
    assert result.pod["metadata"]["annotations"] == given["metadata"]["annotations"]
    given["metadata"]["annotations"] = {}
    some = applied(given, rule._replace(spec=replace(rule.spec, annotations={"x": "y"})))
    assert some.pod["metadata"]["annotations"].keys() == {
        "x", SEED_ANNOTATION, COPIED_ANNOTATION, "node.koordinator.sh/extended-resource-spec"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"priorityClassName": "none"}, "there is no PriorityClass 'none'"),
        ({"patch": {"spec": {"priorityClassName": "none"}}}, "there is no PriorityClass 'none'"),
        ({"patch": {"spec": {"priority": 9000}}}, "name a priorityClassName instead"),
        ({"patch": {"spec": {"hostNetwork": "yes"}}}, "spec.hostNetwork is no boolean: 'yes'"),
        ({"patch": {"spec": {"containers": None}}}, "spec.containers is missing"),
        ({"patch": {"metadata": {"labels": {"a": "b c"}}}}, "'b c' is not the value of a label"),
        ({"labelSuffixes": {"long": "x" * 40}}, "is not the value of a label"),
        ({"annotations": {"x": "y" * 262_144}}, "annotations would have 262145 bytes"),
        ({"patch": {"spec": {"nodeSelector": {"x": "y" * MOST_POD_BYTES}}}}, "the pod would have"),
    ],
)
def test_profile_that_cannot_be_applied_changes_nothing(spec: dict[str, Any], reason: str) -> None:
    given = pod(labels={"app": "a", "long": "y" * 40})
    result = applied(given, profile("a", labels={"x": "a"}, **spec), profile("b", **BATCH))
    assert reason in result.not_applied["a"]
    assert result.applied == ("b",)
    assert result == applied(given, profile("b", **BATCH))._replace(not_applied=result.not_applied)


def test_patch_may_name_the_priority_class() -> None:
    patch = {"spec": {"priorityClassName": "koord-batch", "priority": 1}}
    spec = applied(pod(), profile(patch=patch)).pod["spec"]
    assert (spec["priority"], spec["preemptionPolicy"]) == (5000, "Never")
    assert spec["containers"][0]["resources"]["requests"] == {"kubernetes.io/batch-cpu": "1000"}


def test_patch_waits_for_the_schema() -> None:
    rule = profile(patch={"spec": {"hostNetwork": True}}, labels={"a": "b"})
    cluster = Cluster(CLASSES, {}, None)
    result = apply_profiles(pod(), Request("u", "default"), [rule], cluster)
    assert result.pod == pod()
    assert "has not served its schema" in result.not_applied["p"]


@pytest.mark.parametrize(
    "options",
    [{"translates": False}, {"noted": {"config.koordinator.sh/skip-update-resources": "no"}}],
)
def test_resources_are_kept_by_gate_or_annotation(options: dict[str, Any]) -> None:
    noted = {"noted": options.pop("noted")} if "noted" in options else {}
    result = applied(pod(), profile(**BATCH, **noted), **options)
    assert result.pod["spec"]["containers"] == pod()["spec"]["containers"]
    assert result.pod["spec"]["priority"] == 5000


def test_mirror_pods_stay_as_their_kubelets_run_them() -> None:
    mirror = pod()
    mirror["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "hash"}
    assert applied(mirror, profile(**BATCH)) == (mirror, (), {})


def test_many_profiles_of_a_large_pod_take_little_more_time_than_one() -> None:
    """The webhook answers one review at a time: a client that creates large pods could stop it. One
    copy of the pod for each profile would already take too long."""
    given = pod(*[container(f"c{n}", requests={"cpu": "1"}) for n in range(2000)])
    rules = [profile(f"q{n}", labels={f"l{n}": "x"}) for n in range(40)]

    def seconds(*more: Profile) -> float:
        began = time.process_time()
        result = applied(given, profile(**BATCH), *more)
        assert len(result.applied) == 1 + len(more)
        json_patch(given, result.pod)
        return time.process_time() - began

    alone, among_others = (min(seconds(*more) for _ in range(3)) for more in ((), rules))
    assert among_others < 5 * alone


def test_pod_that_no_profile_changes_keeps_its_resources() -> None:
    batch = pod(priority=5500)
    assert applied(batch, profile(selector={"matchLabels": {"app": "b"}})).pod == batch
    assert applied(batch, profile(probability=0)).pod == batch
    # One that only adds a label translates the pod, which is of the class Batch by its priority.
    resources = applied(batch, profile(labels={"x": "y"})).pod["spec"]["containers"][0]["resources"]
    assert resources == {"requests": {"kubernetes.io/batch-cpu": "1000"}}


@given(st.integers(1, 99), st.text("abc", min_size=1), st.text("def", min_size=1))
def test_repeated_reviews_of_a_pod_have_one_result(percent: int, name: str, uid: str) -> None:
    rule = profile(probability=percent, labels={"x": "y"})
    named = applied(pod(name=name), rule, uid=uid)
    assert applied(pod(name=name), rule, uid=uid + "again").applied == named.applied
    unnamed = applied(pod(name=""), rule, uid=uid)
    assert unnamed.pod["metadata"]["annotations"] == {SEED_ANNOTATION: uid}
    again = applied(unnamed.pod, rule, uid=uid + "again")
    assert (again.applied, again.pod) == (unnamed.applied, unnamed.pod)


@pytest.mark.parametrize("percent", [1, 30, 50, 99])
def test_share_of_pods_is_the_probability(percent: int) -> None:
    """Within five standard deviations of 10,000 draws, and independently of another profile."""
    one, other = profile("one", probability=percent), profile("other", probability=percent)
    drawn = [(is_drawn(one, f"uid-{n}"), is_drawn(other, f"uid-{n}")) for n in range(10_000)]
    share = percent / 100
    for probability, count in (
        (share, sum(first for first, _ in drawn)),
        (share, sum(second for _, second in drawn)),
        (share**2, sum(first and second for first, second in drawn)),
    ):
        deviation = (10_000 * probability * (1 - probability)) ** 0.5
        assert abs(count - 10_000 * probability) < 5 * deviation


@pytest.mark.parametrize("percent", [0, 100])
def test_certain_profiles_leave_no_seed(percent: int) -> None:
    result = applied(pod(name=""), profile(probability=percent, labels={"x": "y"}))
    assert "annotations" not in result.pod["metadata"]
    assert (result.applied == ("p",)) is (percent == 100)


@pytest.mark.parametrize(
    "broken",
    [
        {"spec": []},
        {"spec": {"containers": "x"}},
        {"spec": {"containers": [{"name": "a", "resources": {"requests": {"cpu": "much"}}}]}},
        {"metadata": {"labels": {"a": 1}}},
        {"metadata": []},
    ],
)
def test_what_is_no_pod_is_an_error(broken: dict[str, Any]) -> None:
    with pytest.raises(InvalidRecordError):
        applied(broken, profile(**BATCH))


@pytest.mark.parametrize("empty", [{}, {"metadata": None, "spec": None}, {"spec": {}}])
def test_empty_pod_is_no_error(empty: dict[str, Any]) -> None:
    assert applied(empty, profile(**BATCH, annotations={"x": "y"})).applied == ("p",)
