"""Names of pods and workloads as people type them."""

import pytest

from pipeline.errors import UsageError
from pipeline.processors.kubernetes.typed_names import TypedName, read_typed_name
from pipeline.topics.workloads import Workload


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("web", ("", "", "web")),
        ("shop/web", ("", "shop", "web")),
        ("deploy/web", ("deployment", "", "web")),
        ("Deployments/web", ("deployment", "", "web")),
        ("sts/db", ("statefulset", "", "db")),
        ("rc/web", ("replicationcontroller", "", "web")),
        ("Deployment/shop/web", ("deployment", "shop", "web")),
        ("po/job/web-0", ("pod", "job", "web-0")),
        # As kubectl prints names; no namespace has a dot.
        ("deployment.apps/web", ("deployment", "", "web")),
        ("rollouts.argoproj.io/shop/web", ("rollout", "shop", "web")),
        ("shop/web.v1", ("", "shop", "web.v1")),
        ("SomeKind/shop/web", ("somekind", "shop", "web")),
    ],
)
def test_kinds_and_namespaces_are_told_apart(text: str, typed: tuple[str, str, str]) -> None:
    assert read_typed_name(text) == typed


@pytest.mark.parametrize("text", ["", "/", "shop/", "/web", "a//b", "a/b/c/d"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not the name of a pod or workload"):
        read_typed_name(text)


def test_what_was_not_typed_fits_everything() -> None:
    web = Workload("shop", "Deployment", "web")
    assert TypedName("", "", "x").could_be(web)
    assert TypedName("deployment", "shop", "x").could_be(web)
    assert not TypedName("job", "shop", "x").could_be(web)
    assert not TypedName("", "test", "x").could_be(web)
