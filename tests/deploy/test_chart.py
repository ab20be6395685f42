"""The chart as the real Helm renders it, with default values and with everything switched on."""

import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from pipeline import __version__
from pipeline.cli.main import cli
from pipeline.settings import Settings
from pipeline.settings.load import load_settings
from tests.deploy.helm import (
    CHART,
    DEFAULT_ROLES,
    EVERYTHING,
    ROLES,
    helm,
    object_of,
    pods_of,
    rendered,
    run_helm,
    with_values,
)
from tests.deploy.values_schema import PATH, schema_text
from tests.processes import ROOT

WEBHOOK = ("webhook.enabled=true", "webhook.tls.caBundle=Q0E=")
USER_KEYS = ("runAsUser", "runAsGroup", "fsGroup")
CONFIGURATIONS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")

# Helm is built once, with the control plane.
pytestmark = [pytest.mark.plane, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def default() -> list[Any]:
    return rendered()


@pytest.fixture(scope="module")
def everything() -> list[Any]:
    return rendered(*EVERYTHING, "extender.tls.issuerRef.name=internal")


def settings_of(objects: list[Any], role: str, tmp_path: Path) -> Settings:
    """The settings that a role reads from its ConfigMap and its variables."""
    file = tmp_path / f"{role}.yaml"
    file.write_text(
        object_of(objects, "ConfigMap", f"springtide-{role}")["data"]["springtide.yaml"]
    )
    (container,) = pods_of(objects)[role]["containers"]
    variables = {env["name"]: env.get("value", role) for env in container["env"]}
    del variables["SPRINGTIDE_CONFIG"]
    return load_settings(file, variables, {})


def rendered_from_file(folder: Path, values: dict[str, Any]) -> list[Any]:
    """The objects of the chart with these values, as a file has them."""
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    text = run_helm("template", "springtide", str(CHART), "--values", str(file))
    return [tree for tree in yaml.safe_load_all(text) if tree is not None]


def test_helm_finds_no_fault() -> None:
    for values in ((), EVERYTHING):
        output = run_helm("lint", "--strict", str(CHART), *with_values(values))
        assert "1 chart(s) linted, 0 chart(s) failed" in output


def test_the_schema_has_every_setting() -> None:
    assert PATH.read_text() == schema_text(), "run python -m tests.deploy.values_schema"


def test_the_chart_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


def test_default_values_start_the_roles_that_need_no_choice(default: list[Any]) -> None:
    assert {*pods_of(default)} == {*DEFAULT_ROLES, "topics"}


@pytest.mark.parametrize("role", [*ROLES, "topics"])
def test_a_role_accepts_its_command_and_its_settings(
    everything: list[Any], role: str, tmp_path: Path
) -> None:
    (container,) = pods_of(everything)[role]["containers"]
    program, *words = container["command"]
    assert program == "springtide"
    command: click.Command = cli
    context = click.Context(cli)
    for word in words:
        assert isinstance(command, click.Group)
        found = command.get_command(context, word)
        assert found is not None
        command = found
    settings = settings_of(everything, role, tmp_path)
    # The webhook connects to the API server alone.
    assert settings.kafka.sasl_username == (None if role == "webhook" else f"springtide-{role}")
    assert settings.kubernetes.config_namespace == "koordinator-system" or (
        role not in ("watcher", "planner", "evictor")
    )


def test_by_default_no_role_changes_the_cluster(default: list[Any], tmp_path: Path) -> None:
    settings = {role: settings_of(default, role, tmp_path) for role in DEFAULT_ROLES}
    assert settings["actuator"].actuator.mode == "observe"
    assert settings["evictor"].evictor.mode == "observe"
    assert settings["extender"].extender.mode == "observe"
    node_actuator = settings["node-actuator"].node_actuator
    assert node_actuator.mode == "observe"
    assert {*node_actuator.features.values()} == {"off"}


def test_the_value_undo_switches_everything_off(tmp_path: Path) -> None:
    acting = (
        "settings.actuator.mode=act", "settings.evictor.mode=act", "settings.extender.mode=act",
        "settings.node_actuator.mode=act", "settings.node_actuator.features.cpu_burst=act",
        "settings.webhook.mode=act", *WEBHOOK,
    )  # fmt: skip
    before, after = rendered(*acting), rendered(*acting, "undo=true")
    assert settings_of(before, "actuator", tmp_path).actuator.mode == "act"
    assert settings_of(before, "node-actuator", tmp_path).node_actuator.mode == "act"
    assert settings_of(after, "actuator", tmp_path).actuator.mode == "observe"
    assert settings_of(after, "evictor", tmp_path).evictor.mode == "observe"
    assert settings_of(after, "extender", tmp_path).extender.mode == "observe"
    assert settings_of(before, "webhook", tmp_path).webhook.mode == "act"
    assert settings_of(after, "webhook", tmp_path).webhook.mode == "observe"
    node_actuator = settings_of(after, "node-actuator", tmp_path).node_actuator
    assert node_actuator.mode == "off"
    assert node_actuator.features == {}
    # Helm waits until both have undone what they did.
    for role in ("actuator", "node-actuator"):
        (container,) = pods_of(after)[role]["containers"]
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_a_worker_keeps_its_partitions_when_its_pod_starts_again(
    default: list[Any], tmp_path: Path
) -> None:
    pod = pods_of(default)["worker"]
    (container,) = pod["containers"]
    variable = next(e for e in container["env"] if e["name"] == "SPRINGTIDE_WORKER_INSTANCE_ID")
    # The name of a StatefulSet's pod outlives the pod.
    assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert object_of(default, "StatefulSet", "springtide-worker")
    worker = settings_of(default, "worker", tmp_path).worker
    assert not worker.supervise
    assert str(worker.data_dir) in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_something_else_may_scale_workers() -> None:
    """Each upgrade would undo it, if the chart set a number."""
    objects = rendered("worker.replicas=null")
    assert "replicas" not in object_of(objects, "StatefulSet", "springtide-worker")["spec"]
    assert object_of(objects, "PodDisruptionBudget", "springtide-worker")


def test_a_drain_ends_one_replica_at_a_time_and_is_never_blocked(everything: list[Any]) -> None:
    """Roles of which there is one replica have no budget: it would protect nobody."""
    single = rendered(*WEBHOOK, "webhook.replicas=1", "extender.replicas=1")
    for objects, among, without in (
        (everything, {"webhook", "extender", "notifier", "planner", "worker"}, {"archive"}),
        (single, {"planner", "worker"}, {"webhook", "extender"}),
    ):
        budgets = {
            o["metadata"]["labels"]["app.kubernetes.io/component"]: o["spec"]
            for o in objects
            if o["kind"] == "PodDisruptionBudget"
        }
        assert {spec["maxUnavailable"] for spec in budgets.values()} == {1}
        assert budgets.keys() >= among
        assert budgets.keys().isdisjoint(without)


def test_pods_beside_those_on_nodes_have_least_rights(everything: list[Any]) -> None:
    for role, pod in pods_of(everything).items():
        (container,) = pod["containers"]
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"]
        assert not security["allowPrivilegeEscalation"]
        assert security["capabilities"]["drop"] == ["ALL"]
        assert container["resources"].keys() == {"requests", "limits"}
        assert "memory" in container["resources"]["limits"]
        if role in ("exporter", "node-actuator"):
            continue
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostPID", "hostNetwork", "hostIPC"} & pod.keys()
        assert not any("hostPath" in volume for volume in pod["volumes"])


def test_every_mount_has_a_volume(everything: list[Any]) -> None:
    for pod in pods_of(everything).values():
        volumes = {volume["name"] for volume in pod["volumes"]}
        (container,) = pod["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_secrets_are_named_and_not_contained(everything: list[Any]) -> None:
    assert not [o for o in everything if o["kind"] == "Secret"]
    completed = helm(
        "template", str(CHART), "--set", "settings.kafka.sasl_password=swordfish"
    )  # fmt: skip
    assert completed.returncode != 0
    assert "sasl_password" in completed.stderr
    assert "swordfish" not in completed.stdout


@pytest.mark.parametrize(
    "wrong",
    [
        "worker.replica=3",
        "settings.worker.sesion_timeout_seconds=30",
        "settings.actuator.mode=akt",
        "settings.kafka.partitions=many",
        "extender.replicas=0",
        "settings.notifier.token_file=",
        # Probes would name a port that is not open.
        "settings.worker.metrics_port=0",
        "settings.extender.port=0",
        # The API server takes texts alone.
        "nodeSelector.pool=true",
        # It would refuse these when a part of the release is there.
        "runAsUser=4294967296",
        "worker.replicas=2147483648",
        "worker.resources.requests.cpu=half",
        "archive.size=50Gb",
        "extender.secret=My_Files",
        # The version would follow the tag.
        "image.repository=registry.example.com:5000/springtide:1",
        # Without it the extender would listen by plain HTTP, and take every client.
        "extender.tls.clientCertificates=true",
        # It has no certificate.
        "webhook.enabled=true",
    ],
)
def test_a_wrong_value_is_refused_with_its_name(wrong: str) -> None:
    completed = helm("template", str(CHART), "--set", wrong)
    assert completed.returncode != 0
    assert wrong.partition("=")[0].split(".")[-1] in completed.stderr


def test_the_chart_accepts_the_values_that_guides_set() -> None:
    pages = [path.read_text() for path in (ROOT / "docs").rglob("*.md")]
    commands = re.findall(r"^ {4,}helm (?:install|upgrade) (.*)$", "\n".join(pages), re.M)
    values = {tuple(re.findall(r"--set (\S+)", command)) for command in commands}
    assert len(values) > 10
    for together in values:
        completed = helm("template", str(CHART), *with_values(together))
        assert completed.returncode == 0, completed.stderr


@pytest.mark.parametrize(
    "null", ["worker", "worker.enabled", "settings", "settings.kafka", "image", "extender.tls"]
)
def test_a_section_without_content_is_refused_with_its_name(null: str) -> None:
    completed = helm("template", str(CHART), "--set", f"{null}=null")
    assert completed.returncode != 0
    assert f"missing property '{null.split('.')[-1]}'" in completed.stderr


def test_optional_values_may_be_null() -> None:
    names = (
        "nodeSelector", "tolerations", "schedulerConfig", "runAsUser", "worker.resources",
        "worker.resources.limits", "settings.actuator", "image.pullSecrets", "image.tag",
    )  # fmt: skip
    for name in names:
        assert rendered(f"{name}=null")


@pytest.mark.parametrize("namespace", ["123", "1e3", "true", "my-koordinator-system"])
def test_names_of_release_and_namespace_may_be_any(namespace: str, tmp_path: Path) -> None:
    """Some look like numbers, and some contain a name that the manifests have."""
    objects = rendered(*EVERYTHING, "kafka.caSecret=ca-1e3", namespace=namespace, name="123")
    subjects = [s for o in objects for s in o.get("subjects", [])]
    assert {s["namespace"] for s in subjects} == {namespace}
    found = {o["metadata"].get("namespace") for o in objects}
    assert found == {namespace, "koordinator-system", "default", None}
    assert {o["metadata"]["labels"]["app.kubernetes.io/instance"] for o in objects} == {"123"}
    settings = settings_of(objects, "watcher", tmp_path).kubernetes
    assert (settings.namespace, settings.config_namespace) == (namespace, "koordinator-system")
    # By default both are the namespace of the release.
    by_default = rendered(namespace=namespace)
    assert {o["metadata"].get("namespace") for o in by_default} == {namespace, "default", None}
    assert settings_of(by_default, "watcher", tmp_path).kubernetes.config_namespace == namespace


def test_names_of_secrets_and_volumes_may_look_like_numbers() -> None:
    names = ("kafka.caSecret", "kafka.userSecret", "extender.tls.secretName", "extender.secret",
             "archive.existingClaim", "priorityClassName")  # fmt: skip
    flags = [word for name in names for word in ("--set-string", f"{name}=123")]
    text = run_helm("template", "s", str(CHART), "--set", "archive.enabled=true", *flags)
    pods = pods_of([tree for tree in yaml.safe_load_all(text) if tree is not None])
    volumes = {v["name"]: v for role in ("extender", "archive") for v in pods[role]["volumes"]}
    for name in ("kafka-ca", "kafka-user", "tls", "secret"):
        assert volumes[name]["secret"]["secretName"] == "123"
    assert volumes["archive"]["persistentVolumeClaim"]["claimName"] == "123"
    assert pods["extender"]["priorityClassName"] == "123"


def test_roles_with_traces_get_the_collector_and_its_secret_variables(tmp_path: Path) -> None:
    url = "http://collector:4318"
    objects = rendered(f"settings.tracing.endpoint={url}", "tracing.secret=otel", *EVERYTHING)
    traced = set()
    for role, pod in pods_of(objects).items():
        (container,) = pod["containers"]
        if container.get("envFrom") == [{"secretRef": {"name": "otel"}}]:
            traced.add(role)
            assert settings_of(objects, role, tmp_path).tracing.endpoint == url
    assert traced == {"worker", "actuator", "planner", "evictor", "extender", "node-actuator"}
    for pod in pods_of(rendered()).values():
        assert "envFrom" not in pod["containers"][0]


def test_a_setting_restarts_only_the_roles_that_read_it(default: list[Any]) -> None:
    def checksums(objects: list[Any]) -> dict[str, str]:
        return {
            o["metadata"]["labels"]["app.kubernetes.io/component"]: o["spec"]["template"][
                "metadata"
            ]["annotations"]["checksum/settings"]
            for o in objects
            if "template" in o.get("spec", {})
        }

    before = checksums(default)
    after = checksums(rendered("settings.extender.stale_after_seconds=200"))
    changed = {role for role in before if before[role] != after[role]}
    assert changed == {"extender", "actuator", "planner"}


def test_large_numbers_stay_whole(tmp_path: Path) -> None:
    """Helm reads numbers of a file as floats, and those of `--set` as integers."""
    values = {"runAsUser": 1000680000, "settings": {"exporter": {"buffer_bytes": 134217728}}}
    from_flags = rendered("runAsUser=1000680000", "settings.exporter.buffer_bytes=134217728")
    for objects in (rendered_from_file(tmp_path, values), from_flags):
        assert settings_of(objects, "exporter", tmp_path).exporter.buffer_bytes == 134217728
        security = pods_of(objects)["worker"]["securityContext"]
        for key in USER_KEYS:
            assert security[key] == 1000680000


def test_paths_on_nodes_may_have_any_characters(tmp_path: Path) -> None:
    state_file, socket = "/var/lib/my: {kubelet}, #1/state", '/run/"nri"/socket'
    actuator = {"cpu_manager_state_file": state_file, "nri_socket": socket}
    values = {"nodeActuator": {"cpuManagerState": True}, "settings": {"node_actuator": actuator}}
    pod = pods_of(rendered_from_file(tmp_path, values))["node-actuator"]
    paths = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    for found in (paths, mounts):
        assert (found["cpu-manager"], found["nri"]) == (state_file, '/run/"nri"')


def test_a_platform_may_choose_the_user() -> None:
    """OpenShift refuses a user and a group that are not of the namespace's range."""
    for role, pod in pods_of(rendered("runAsUser=null")).items():
        if role not in ("exporter", "node-actuator"):
            assert pod["securityContext"]["runAsNonRoot"]
            (container,) = pod["containers"]
            for security in (pod["securityContext"], container["securityContext"]):
                assert security.keys().isdisjoint(USER_KEYS)


def test_a_scheduler_asks_one_extender(default: list[Any]) -> None:
    service = object_of(default, "Service", "springtide-extender")
    assert service["spec"]["sessionAffinity"] == "ClientIP"
    assert object_of(default, "Deployment", "springtide-extender")["spec"]["replicas"] == 2
    # The address in the scheduler's configuration.
    text = (CHART.parent / "scheduler/act.yaml").read_text()
    (port,) = service["spec"]["ports"]
    assert f"http://springtide-extender.springtide-system.svc:{port['port']}" in text


def test_a_certificate_is_made_by_the_issuer(everything: list[Any]) -> None:
    certificate = object_of(everything, "Certificate", "springtide-extender")
    assert certificate["spec"]["secretName"] == "extender-tls"
    assert certificate["spec"]["issuerRef"] == {"name": "internal"}
    (container,) = pods_of(everything)["extender"]["containers"]
    assert container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"


def test_the_api_server_trusts_the_certificate_that_the_webhook_shows() -> None:
    """By the CA of the values, or by that of cert-manager."""
    name = "webhook.tls.secretName=own-tls"
    for choice in ("webhook.tls.caBundle=Q0E=", "webhook.tls.certManager=true"):
        objects = rendered("webhook.enabled=true", choice, name, namespace="elsewhere")
        secret = {"name": "tls", "secret": {"secretName": "own-tls"}}
        assert secret in pods_of(objects)["webhook"]["volumes"]
        configurations = [object_of(objects, kind, "springtide-webhook") for kind in CONFIGURATIONS]
        for configuration in configurations:
            for webhook in configuration["webhooks"]:
                assert webhook["failurePolicy"] == "Ignore"
                service = webhook["clientConfig"]["service"]
                assert (service["name"], service["namespace"]) == (
                    "springtide-webhook", "elsewhere",
                )  # fmt: skip
        authorities = {
            webhook["clientConfig"].get("caBundle")
            for configuration in configurations
            for webhook in configuration["webhooks"]
        }
        injected = {str(each["metadata"].get("annotations")) for each in configurations}
        made = [o for o in objects if o["kind"] == "Certificate"]
        if "certManager" in choice:
            assert authorities == {None}
            source = {"cert-manager.io/inject-ca-from": "elsewhere/springtide-webhook"}
            assert injected == {str(source)}
            (served,) = (o["spec"] for o in made if o["spec"]["secretName"] == "own-tls")
            assert served["dnsNames"] == ["springtide-webhook.elsewhere.svc"]
        else:
            assert authorities == {"Q0E="}
            assert injected == {"None"}
            assert made == []


def test_reviews_and_metrics_have_ports_of_their_own(everything: list[Any]) -> None:
    (container,) = pods_of(everything)["webhook"]["containers"]
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {
        "https": 9443, "metrics": 9112,
    }  # fmt: skip
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == "https"
        assert container[probe]["httpGet"]["scheme"] == "HTTPS"
    rules = object_of(everything, "NetworkPolicy", "springtide-webhook")["spec"]["ingress"]
    # The API server has no label that a policy could select.
    assert {rule["ports"][0]["port"]: "from" in rule for rule in rules} == {9443: False, 9112: True}
    (port,) = object_of(everything, "Service", "springtide-webhook")["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (443, "https")


def test_priority_classes_are_those_of_their_file(
    default: list[Any], everything: list[Any]
) -> None:
    text = (CHART / "webhook/priority-classes.yaml").read_text()
    declared = {o["metadata"]["name"]: o["value"] for o in yaml.safe_load_all(text)}
    found = [o for o in everything if o["kind"] == "PriorityClass"]
    assert {o["metadata"]["name"]: o["value"] for o in found} == declared
    # Workloads that name them stay when the release goes.
    assert {o["metadata"]["annotations"]["helm.sh/resource-policy"] for o in found} == {"keep"}
    assert not [o for o in default if o["kind"] == "PriorityClass"]


def test_prometheus_and_grafana_get_the_files_of_monitoring(default: list[Any]) -> None:
    values = ("monitoring.enabled=true", "monitoring.dashboards=true", "monitoring.labels.team=a")
    objects = rendered(*values, namespace="elsewhere")
    for kind in ("PodMonitor", "PrometheusRule"):
        found = object_of(objects, kind, "springtide")
        file = CHART / "monitoring" / f"{kind.lower()}.yaml"
        assert found["spec"] == yaml.safe_load(file.read_text())["spec"]
        assert found["metadata"]["namespace"] == "elsewhere"
        assert found["metadata"]["labels"]["team"] == "a"
    without = rendered(*values, "worker.enabled=false")
    groups = object_of(without, "PrometheusRule", "springtide")["spec"]["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"]}
    assert ("SpringtideNoWorker" in alerts, "SpringtideNoLeader" in alerts) == (False, True)
    by_tls = rendered(*values, "extender.tls.secretName=extender-tls")
    endpoints = object_of(by_tls, "PodMonitor", "springtide")["spec"]["podMetricsEndpoints"]
    assert {each["port"]: each.get("scheme") for each in endpoints} == {
        "metrics": None, "http": "https",
    }  # fmt: skip
    dashboards = object_of(objects, "ConfigMap", "springtide-dashboards")
    assert dashboards["metadata"]["labels"]["grafana_dashboard"] == "1"
    files = [*(CHART / "monitoring/dashboards").iterdir()]
    assert dashboards["data"] == {file.name: file.read_text() for file in files}
    kinds = {o["kind"] for o in default}
    assert not kinds & {"PodMonitor", "PrometheusRule"}


def test_a_package_of_the_chart_renders_the_same(default: list[Any], tmp_path: Path) -> None:
    run_helm("package", str(CHART), "--destination", str(tmp_path))
    package = tmp_path / f"springtide-{__version__}.tgz"
    text = run_helm("template", "springtide", str(package), "--namespace", "springtide-system")
    assert [tree for tree in yaml.safe_load_all(text) if tree is not None] == default
