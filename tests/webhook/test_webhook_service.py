"""The webhook's HTTP service over objects that are filled by hand."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from pipeline.clock import SystemClock
from pipeline.errors import SettingsError
from pipeline.kube.api_client import Api
from pipeline.local.pki import Authority
from pipeline.settings import WebhookSettings
from pipeline.tasks import cancel_tasks
from pipeline.webhook import limits
from pipeline.webhook.reviews import APPLICATIONS
from pipeline.webhook.webhook_service import REVIEWS, Webhook, serve
from tests.metric_values import sum_of
from tests.processes import until
from tests.processors.admission.pods import container, encoded, pod
from tests.webhook.known_objects import KnownObjects

POD_KIND = {"group": "", "version": "v1", "kind": "Pod"}
PROFILE_KIND = {
    "group": "config.koordinator.sh", "version": "v1alpha1", "kind": "ClusterColocationProfile",
}  # fmt: skip
BATCH = encoded("batch", qosClass="BE", priorityClassName="koord-batch")
Client = TestClient[Any, Any]
Start = Callable[..., Awaitable[Client]]


def review(given: Any, operation: str = "CREATE", **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "r1", "operation": operation, "namespace": "default", "object": given,
            "kind": POD_KIND, **more,
        },
    }  # fmt: skip


async def response(client: Client, path: str, document: dict[str, Any]) -> dict[str, Any]:
    answer = await client.post(path, json=document)
    assert answer.status == 200, await answer.text()
    body = await answer.json()
    assert (body["kind"], body["response"]["uid"]) == ("AdmissionReview", "r1")
    found: dict[str, Any] = body["response"]
    return found


def patch_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    operations: list[dict[str, Any]] = json.loads(base64.b64decode(found["patch"]))
    return operations


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """`client = await start(*profiles, mode="act")`: a client of a service."""
    async with AsyncExitStack() as stack:

        async def started(*profiles: bytes, **settings: Any) -> Client:
            objects = settings.pop("objects", None) or KnownObjects(*profiles)
            if settings.pop("is_read", True):
                await objects._read_schema()
            given = WebhookSettings(**({"mode": "act"} | settings))
            app = Webhook(objects, given).app()
            return await stack.enter_async_context(TestClient(TestServer(app)))

        yield started


async def test_pod_of_a_profile_is_changed(start: Start) -> None:
    client = await start(BATCH)
    before = sum_of(REVIEWS, path="/mutate-pods", result="changed")
    found = await response(client, "/mutate-pods", review(pod()))
    assert (found["allowed"], found["auditAnnotations"]) == (True, {"profiles": "batch"})
    paths = {operation["path"] for operation in patch_of(found)}
    assert "/metadata/labels/koordinator.sh~1qosClass" in paths
    assert "/spec/containers/0/resources/requests/kubernetes.io~1batch-cpu" in paths
    assert sum_of(REVIEWS, path="/mutate-pods", result="changed") == before + 1


async def test_observe_admits_unchanged_and_says_what_it_would_do(start: Start) -> None:
    client = await start(BATCH, mode="observe")
    found = await response(client, "/mutate-pods", review(pod()))
    assert (found["allowed"], "patch" in found) == (True, False)
    assert "batch-cpu" in found["auditAnnotations"]["would-change"]
    wrong = pod(labels={"koordinator.sh/qosClass": "BE"}, priority=9500)
    found = await response(client, "/validate-pods", review(wrong))
    assert found["allowed"] is True
    (warning,) = found["warnings"]
    assert warning.startswith("springtide would refuse this Pod: labels[koordinator.sh/qosClass]")


async def test_forbidden_pairs_and_changes_are_refused(start: Start) -> None:
    client = await start()
    wrong = pod(labels={"koordinator.sh/qosClass": "BE"}, priority=9500)
    found = await response(client, "/validate-pods", review(wrong))
    assert (found["allowed"], found["status"]["code"]) == (False, 403)
    assert "cannot be combined" in found["status"]["message"]
    changed = pod(labels={"koordinator.sh/qosClass": "LS"})
    update = review(changed, "UPDATE", oldObject=pod())
    found = await response(client, "/validate-pods", update)
    assert "cannot change" in found["status"]["message"]
    assert (await response(client, "/validate-pods", review(pod())))["allowed"] is True


async def test_invalid_profile_is_refused_when_it_is_written(start: Start) -> None:
    client = await start()
    document = review(json.loads(encoded(probability="half")), kind=PROFILE_KIND)
    found = await response(client, "/validate-profiles", document)
    assert "spec.probability: 'half'" in found["status"]["message"]
    document = review(json.loads(BATCH), kind=PROFILE_KIND)
    assert (await response(client, "/validate-profiles", document))["allowed"] is True


async def test_invalid_profile_stops_no_pod_and_is_reported_once(start: Start) -> None:
    """One that was stored before the webhook came, beside one that names a class of none."""
    objects = KnownObjects(
        encoded("odd", qosClass="BEST"), encoded("none", priorityClassName="none"), BATCH
    )
    client = await start(objects=objects)
    before = sum_of(APPLICATIONS, result="not_applied")
    for _ in range(3):
        found = await response(client, "/mutate-pods", review(pod()))
        assert found["auditAnnotations"] == {"profiles": "batch"}
    assert sum_of(APPLICATIONS, result="not_applied") == before + 3
    await asyncio.sleep(0)
    about = {(e["involvedObject"]["name"], e["message"]) for e in objects.api.written}
    assert len(objects.api.written) == 2
    assert {name for name, _ in about} == {"odd", "none"}
    assert any("BEST" in text for _, text in about)
    assert any("there is no PriorityClass 'none'" in text for _, text in about)
    # A deleted profile leaves no trace.
    objects.set_profiles(BATCH)
    assert [each.name for each in objects.profiles] == ["batch"]
    assert objects._reported == {}


async def test_dry_run_leaves_no_event(start: Start) -> None:
    """Its configuration declares no side effects for it."""
    objects = KnownObjects(encoded("none", priorityClassName="none"))
    client = await start(objects=objects)
    await response(client, "/mutate-pods", review(pod(), dryRun=True))
    await asyncio.sleep(0)
    assert objects.api.written == []
    await response(client, "/mutate-pods", review(pod(), dryRun=False))
    await asyncio.sleep(0)
    assert len(objects.api.written) == 1


async def test_reasons_that_differ_by_pod_are_reported_a_few_times(start: Start) -> None:
    objects = KnownObjects(encoded("long", labelSuffixes={"app": "x" * 60}))
    client = await start(objects=objects)
    for turn in range(2):
        for number in range(20):
            given = pod(labels={"app": f"app-{number}"})
            assert "patch" not in await response(client, "/mutate-pods", review(given))
        await asyncio.sleep(0)
        assert len(objects.api.written) == limits.MOST_REASONS, turn


@pytest.mark.parametrize(
    ("gates", "path", "effect"),
    [
        ("PodMutatingWebhook=false", "/mutate-pods", None),
        ("ColocationProfileSkipMutatingResources=true", "/mutate-pods", "koordinator.sh~1qosClass"),
        ("DisableExtendedResourceSpec=true", "/mutate-pods", "batch-cpu"),
    ],
)
async def test_gates_switch_parts_of_the_mutation(
    start: Start, gates: str, path: str, effect: str | None
) -> None:
    every = await response(await start(BATCH), path, review(pod()))
    assert {"batch-cpu", "extended-resource-spec"} <= {
        word for word in ("batch-cpu", "extended-resource-spec") if word in str(patch_of(every))
    }
    found = await response(await start(BATCH, feature_gates=gates), path, review(pod()))
    if effect is None:
        assert "patch" not in found
        return
    text = str(patch_of(found))
    assert (effect in text, "extended-resource-spec" in text) == (True, False)
    assert ("batch-cpu" in text) is (effect == "batch-cpu")


async def test_gates_switch_parts_of_the_validation(start: Start) -> None:
    old, new = (pod(labels={"koordinator.sh/priority": number}) for number in "12")
    update = review(new, "UPDATE", oldObject=old)
    for gates, is_allowed in (
        ("", False),
        ("ColocationProfileSkipValidatingPriority=true", True),
        ("PodValidatingWebhook=false", True),
        ("PodMutatingWebhook=false", False),
    ):
        client = await start(feature_gates=gates)
        found = await response(client, "/validate-pods", update)
        assert found["allowed"] is is_allowed, gates


def test_unknown_gate_is_an_error_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match="no gate 'PodWebhook'") as raised:
        Webhook(KnownObjects(), WebhookSettings(feature_gates="PodWebhook=true"))
    assert "PodMutatingWebhook, PodValidatingWebhook" in (raised.value.hint or "")


@pytest.mark.parametrize(
    "change",
    [
        {"kind": {"group": "apps", "version": "v1", "kind": "Deployment"}},
        {"operation": "DELETE", "object": None},
        {"operation": "CONNECT"},
        {"subResource": "exec"},
        {"object": {"spec": {"containers": "x"}}},
        {"object": {"metadata": {"labels": {"a": 1}}}},
        {"object": {"spec": {"containers": [container(limits={"cpu": "much"})]}}},
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/mutate-pods", "/validate-pods"])
async def test_what_concerns_no_rule_or_is_no_pod_is_admitted(
    start: Start, path: str, change: dict[str, Any]
) -> None:
    found = await response(await start(BATCH), path, review(pod(), **change))
    assert (found["allowed"], "patch" in found) == (True, False)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[" * 200_000, 400),
        (b"\xff" * 100, 400),
        (json.dumps(review("no object")).encode(), 400),
        (json.dumps(review(None)).encode(), 400),
        (json.dumps({**review({}), "kind": "Other"}).encode(), 400),
        (json.dumps(review({"a": "x" * limits.MAX_REVIEW_BYTES})).encode(), 413),
    ],
    ids=range(8),
)
@pytest.mark.parametrize("path", ["/mutate-pods", "/validate-pods", "/validate-profiles"])
async def test_hostile_bodies_get_a_clear_refusal(
    start: Start, path: str, body: bytes, status: int
) -> None:
    client = await start(BATCH)
    answer = await client.post(path, data=body, headers={"Content-Type": "application/json"})
    if path == "/validate-profiles" and status == 400 and answer.status == 200:
        # It is a review, and concerns no profile.
        assert (await answer.json())["response"]["allowed"] is True
        return
    assert answer.status == status
    assert (await answer.json())["error"]
    # The service goes on.
    assert (await client.get("/readyz")).status == 200


async def test_deep_pods_are_admitted_or_refused_and_no_crash(start: Start) -> None:
    """A pod may have unknown fields of any depth; the API server itself would drop them."""
    client = await start(BATCH, encoded("deep", patch={"spec": {"hostNetwork": True}}))
    shallow = json.dumps(review({"deep": 1}))
    for depth in (100, 900, 5000, 100_000):
        text = shallow.replace('"deep": 1', '"a":{' * depth + "}" * depth)
        answer = await client.post("/mutate-pods", data=text.encode())
        assert answer.status in (200, 400), depth


async def test_slow_body_is_bounded_in_time(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.webhook.limits.BODY_SECONDS", 0.1)

    async def slowly() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(1.0)
        yield b"}"

    client = await start()
    answer = await client.post("/mutate-pods", data=slowly())
    assert (answer.status, (await answer.json())["error"]) == (
        408, "the review did not arrive within 0.1 s",
    )  # fmt: skip


async def test_too_many_large_reviews_at_once_get_503(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.webhook.limits.REVIEWS_AT_ONCE", 0)
    monkeypatch.setattr("pipeline.webhook.limits.PLACE_SECONDS", 0.05)
    client = await start(BATCH)
    large = pod()
    large["metadata"]["annotations"] = {"text": "x" * limits.SMALL_REVIEW_BYTES}
    answer = await client.post("/mutate-pods", json=review(large))
    assert (answer.status, "under way" in (await answer.json())["error"]) == (503, True)
    # Slow clients with large reviews would take every place.
    assert "patch" in await response(client, "/mutate-pods", review(pod()))


async def test_nothing_is_decided_before_the_cluster_is_read(start: Start) -> None:
    client = await start(BATCH, is_read=False)
    for answer in (
        await client.post("/mutate-pods", json=review(pod())), await client.get("/readyz"),
    ):  # fmt: skip
        assert answer.status == 503
    assert (await client.get("/healthz")).status == 200


async def test_pod_that_follows_its_namespace_at_once_is_admitted(start: Start) -> None:
    """The namespace is unknown to the watch and, here, to the API server."""
    rule = encoded("by-namespace", namespaceSelector={"matchLabels": {"a": "b"}}, qosClass="LS")
    found = await response(await start(rule), "/mutate-pods", review(pod(), namespace="new"))
    assert (found["allowed"], "patch" in found) == (True, False)


@asynccontextmanager
async def serving(
    monkeypatch: pytest.MonkeyPatch, stop: asyncio.Event, files: dict[str, Any]
) -> AsyncIterator[tuple[int, "asyncio.Task[None]"]]:
    """A service with TLS: its port, and its task."""
    monkeypatch.setattr(
        "pipeline.webhook.webhook_service.ClusterObjects", lambda api: KnownObjects(BATCH)
    )
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    settings = WebhookSettings(host="127.0.0.1", port=0, mode="act", **files)
    running = asyncio.create_task(
        serve(
            cast(Api, None), settings, SystemClock(), stop, port.set_result,
            linger_seconds=60.0,
        )
    )  # fmt: skip
    try:
        either: set[asyncio.Future[Any]] = {running, port}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        yield port.result(), running
    finally:
        await cancel_tasks(running)


async def test_reviews_require_a_client_certificate_where_a_ca_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = Authority(tmp_path, SystemClock())
    own, client = ca.server("webhook", (), ["localhost"]), ca.client("kube-apiserver")
    files = {
        "tls_cert_file": str(own.public), "tls_key_file": str(own.private),
        "tls_client_ca_file": str(ca.certificate),
    }  # fmt: skip
    context = ssl.create_default_context(cafile=str(ca.certificate))
    async with serving(monkeypatch, asyncio.Event(), files) as (port, _):
        url = f"https://localhost:{port}"
        async with aiohttp.ClientSession() as session:
            for path in ("/readyz", "/healthz"):
                assert (await session.get(url + path, ssl=context)).status == 200
            answer = await session.post(f"{url}/mutate-pods", json=review(pod()), ssl=context)
            assert answer.status == 403
            assert "tls_client_ca_file" in (await answer.json())["error"]
        context.load_cert_chain(*client)
        async with aiohttp.ClientSession() as session:
            answer = await session.post(f"{url}/mutate-pods", json=review(pod()), ssl=context)
            assert answer.status == 200


async def test_reviews_are_answered_while_the_service_drains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = Authority(tmp_path, SystemClock())
    own = ca.server("webhook", (), ["localhost"])
    context = ssl.create_default_context(cafile=str(ca.certificate))
    stop = asyncio.Event()
    files = {"tls_cert_file": str(own.public), "tls_key_file": str(own.private)}
    async with serving(monkeypatch, stop, files) as (port, running):
        url = f"https://localhost:{port}"
        async with aiohttp.ClientSession() as session:
            stop.set()

            async def is_draining() -> bool:
                return (await session.get(f"{url}/readyz", ssl=context)).status == 503

            await until(is_draining)
            answer = await session.post(f"{url}/mutate-pods", json=review(pod()), ssl=context)
            assert (answer.status, answer.headers["Connection"]) == (200, "close")
            assert not running.done()


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "webhook.tls_cert_file is missing: API servers call webhooks by HTTPS only"),
        ({"tls_cert_file": "none.crt"}, "webhook.tls_key_file is missing"),
        ({"tls_cert_file": "none.crt", "tls_key_file": "none.key"}, "No such file"),
    ],
)
async def test_certificate_is_required(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], says: str
) -> None:
    with pytest.raises(SettingsError, match=says):
        async with serving(monkeypatch, asyncio.Event(), files):
            pass
