"""Settings: precedence, validation, and errors with a remedy."""

import re
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import SettingsError
from pipeline.settings import (
    HostApplicationCgroup,
    KafkaSettings,
    Secret,
    Settings,
    describe_settings,
    flag_name,
    load_settings,
    node_name,
    variable_name,
)
from pipeline.settings.describe import is_secret, leaf_types, written

KEYS = tuple(leaf_types())


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "springtide.yaml"
    path.write_text(text)
    return path


def refusal(
    path: Path | None = None,
    environ: dict[str, str] | None = None,
    overrides: dict[str, object] | None = None,
) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        load_settings(path, environ or {}, overrides or {})
    assert caught.value.exit_code == 2
    return caught.value


def test_defaults_apply_without_any_source() -> None:
    assert load_settings(None, {"HOME": "/root", "PATH": "/bin"}, {}) == Settings()


def test_mode_off_needs_no_quotes(tmp_path: Path) -> None:
    path = write(tmp_path, "node_actuator: {mode: off, features: {cpu_burst: off}}")
    section = load_settings(path, {}, {}).node_actuator
    assert (section.mode, section.features) == ("off", {"cpu_burst": "off"})
    flags = {"node_actuator.features": "{cpu_suppression: act, cpu_burst: off}"}
    features = load_settings(None, {}, flags).node_actuator.features
    assert features == {"cpu_suppression": "act", "cpu_burst": "off"}


def test_flags_override_variables_override_file(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        exporter: {window_seconds: 10, collect_interval_seconds: 2, cgroup_driver: systemd}
        model: {half_life_seconds: {cpu: 60, memory: 120}}
        extender:  # all keys commented out
        """,
    )
    variables = {
        "SPRINGTIDE_EXPORTER_WINDOW_SECONDS": "20", "SPRINGTIDE_MODEL_HALF_LIFE_SECONDS_CPU": "90",
    }  # fmt: skip
    expected = {
        "exporter.window_seconds": 60, "exporter.collect_interval_seconds": 2,
        "exporter.cgroup_driver": "systemd", "model.half_life_seconds.cpu": 90,
        "model.half_life_seconds.memory": 120,
    }  # fmt: skip
    settings = load_settings(path, variables, {"exporter.window_seconds": "60"})
    assert settings == load_settings(None, {}, expected)


@pytest.mark.parametrize("key", [key for key in KEYS if key != "exporter.host_applications"])
def test_every_default_can_be_written_in_every_source(key: str, tmp_path: Path) -> None:
    text = written(next(s.default for s in describe_settings() if s.key == key))
    *sections, name = key.split(".")
    lines = [f"{'  ' * depth}{section}:" for depth, section in enumerate(sections)]
    path = write(tmp_path, "\n".join([*lines, f"{'  ' * len(sections)}{name}: {text}"]))
    assert load_settings(path, {}, {}) == Settings()
    assert load_settings(None, {variable_name(key): text.strip('"')}, {}) == Settings()
    assert load_settings(None, {}, {key: text.strip('"')}) == Settings()


def test_workers_of_each_topic_prefix_are_a_group_of_their_own() -> None:
    groups = [Settings(kafka=KafkaSettings(topic_prefix=prefix)).worker_group for prefix in "ab"]
    assert groups == ["a.springtide-worker", "b.springtide-worker"]


def test_each_key_has_its_own_variable() -> None:
    assert len({variable_name(key) for key in KEYS}) == len(KEYS)
    assert flag_name("model.half_life_seconds.cpu") == "--half-life-seconds-cpu"


@pytest.mark.parametrize(
    ("key", "bad", "allowed"),
    [
        ("exporter.window_seconds", "7", "a divisor of 86400"),
        ("exporter.cgroup_parent", "a/../..", "a directory below the cgroup root"),
        ("exporter.window_seconds", "0", "a whole number from 1 to 3600"),
        ("exporter.window_seconds", "30.5", "a whole number"),
        ("exporter.window_seconds", "thirty", "'thirty' is not allowed, allowed is a whole number"),
        ("exporter.collect_interval_seconds", "0.05", "from 0.1"),
        ("exporter.collect_interval_seconds", "nan", "a number"),
        ("exporter.collect_interval_seconds", "inf", "a number"),
        ("exporter.collect_interval_seconds", "60", "at most window_seconds (30)"),
        ("exporter.node_name", "Node 1", "lower-case"),
        ("exporter.node_name", "n" * 254, "253"),
        ("exporter.metrics_port", "65536", "0 to 65535, or null"),
        ("exporter.host_applications", "[{nam: a}]", "a list"),
        ("exporter.host_applications", "[", "a list"),
        ("exporter.host_applications", "[{name: a}, {name: a}]", "each name once"),
        ("exporter.host_applications", "[{name: 'a\\b'}]", "a list"),
        ("kafka.bootstrap_servers", "", "host:port"),
        ("kafka.bootstrap_servers", "localhost", "host:port"),
        ("kafka.bootstrap_servers", "a:1, b:2", "host:port"),
        ("kafka.bootstrap_servers", "a:65536", "host:port"),
        ("kafka.bootstrap_servers", "a:9092,b:0", "host:port"),
        ("kafka.topic_prefix", "my topics", "a name of"),
        ("kafka.security_protocol", "ssl", "one of"),
        ("kafka.security_protocol", "SASL_SSL", "a value, because security_protocol is SASL_SSL"),
        ("kafka.ssl_cert_file", "/a.pem", "certificate and key are given together"),
        ("worker.supervise", "perhaps", "true or false"),
        ("worker.policy_file", "/policy.yaml", "a file, because policy_file is for the nodes"),
        ("worker.restart_backoff_min_seconds", "31", "restart_backoff_min_seconds (31)"),
        ("worker.data_dir", "/a\0b", "a path, or null"),
        ("model.training_statistic", "p99", "p95"),
        ("model.minimum_coverage", "1.01", "a number from 0 to 1"),
        ("extender.mode", "Act", "one of act, observe"),
        ("log.level", "7", "one of"),
    ],
)
def test_invalid_value_error_has_source_and_allowed_values(
    key: str, bad: str, allowed: str
) -> None:
    by_variable = refusal(environ={variable_name(key): bad})
    by_flag = refusal(overrides={key: bad})
    for error in (by_variable, by_flag):
        assert [words for words in (allowed, key.split(".")[0]) if words not in error.message] == []
        assert error.hint
    if allowed[:4] not in ("a fi", "a va", "cert", "rest"):  # these blame the key that is missing
        assert f"variable {variable_name(key)}" in by_variable.message
        assert f"flag {flag_name(key)}" in by_flag.message


def test_quoted_numbers_in_the_file_are_text(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, "exporter: {window_seconds: '30'}\nworker: {id: 7}"))
    assert "exporter.window_seconds: '30' is not allowed" in error.message
    assert "worker.id: 7 is not allowed" in error.message
    assert f"file {tmp_path}/springtide.yaml" in error.message


def test_all_problems_are_reported_at_once() -> None:
    error = refusal(
        environ={"SPRINGTIDE_EXPORTER_WINDOW_SECOND": "5", "SPRINGTIDE_LOG_LEVEL": "loud"},
        overrides={"extender.port": "-1", "kafka.bootstrap_server": "a:1"},
    )
    assert error.message.startswith("4 settings are invalid")
    assert "SPRINGTIDE_FOO: unknown setting (" in refusal(environ={"SPRINGTIDE_FOO": "1"}).message
    assert "did you mean SPRINGTIDE_EXPORTER_WINDOW_SECONDS?" in error.message
    assert "kafka.bootstrap_server: unknown setting, did you mean kafka.bootstrap_servers?" in (
        error.message
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kafka: {bootstrap_server: 'a:1'}", "did you mean kafka.bootstrap_servers?"),
        ("kafak: {bootstrap_servers: 'a:1'}", "kafak: unknown setting, did you mean kafka?"),
        ("foo: 1", "foo: unknown setting (file"),
        ("kafka: 5", "a value of type int instead of a section with the keys bootstrap_servers"),
        ("kafka: [1]", "a list instead of a section"),
        ("- kafka", "a list instead of sections"),
        ("just words", "a text instead of sections"),
        (
            "{apiVersion: v1, kind: Pod}",
            "has a Kubernetes object of kind 'Pod' instead of settings",
        ),
        (
            "{apiVersion: descheduler/v1alpha2, kind: DeschedulerConfiguration}",
            "of kind 'DeschedulerConfiguration' instead of settings",
        ),
        ("log: {level: info}\nlog: {level: debug}", "line 2, column 1: key 'log' occurs twice"),
        ("log: {level: info, 'level': debug}", "key 'level' occurs twice"),
        ("a: [", "not valid YAML: line 1, column 5: expected the node content"),
        ("a: " + "[" * 5000, "not valid YAML: it is nested too deeply"),
        ("? [a]\n: b", "not valid YAML"),
        ("log: {level: !!bool info}", "not valid YAML"),
        ('log: {level: "\\ud800"}', "not valid YAML"),
        ("log: {level: !!timestamp info}", "not valid YAML"),
        ("#" + "x" * 300_000, "it is larger than 256 KiB"),
        ("exporter: {host_applications: [{name: a, cgroupPath: {relativPath: x}}]}", "relativPath"),
        ("model: {half_life_seconds: 3600}", "with the keys cpu, memory"),
        ("5: 6", "unknown setting"),
        ("exporter: {window_seconds: null}", "null is not allowed"),
        ("extender: {mode: [act]}", "[act] is not allowed"),
    ],
)
def test_invalid_file_error_names_the_key(text: str, expected: str, tmp_path: Path) -> None:
    assert expected in refusal(write(tmp_path, text)).message


def test_unreadable_file_is_an_error(tmp_path: Path) -> None:
    missing = refusal(tmp_path / "none.yaml")
    assert missing.message == f"cannot read {tmp_path}/none.yaml: No such file or directory"
    assert missing.hint == "correct --config or SPRINGTIDE_CONFIG"
    assert "Is a directory" in refusal(tmp_path).message
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "not valid YAML" in refusal(binary).message


def test_empty_file_sets_nothing(tmp_path: Path) -> None:
    assert load_settings(write(tmp_path, "# nothing yet\n"), {}, {}) == Settings()


def test_service_variables_of_the_kubelet_are_ignored() -> None:
    links = {
        "SPRINGTIDE_EXTENDER_SERVICE_HOST": "10.0.0.7",
        "SPRINGTIDE_EXTENDER_SERVICE_PORT": "8888",
        "SPRINGTIDE_EXTENDER_SERVICE_PORT_HTTP": "8888",
        "SPRINGTIDE_EXTENDER_PORT": "tcp://10.0.0.7:8888",
        "SPRINGTIDE_EXTENDER_PORT_8888_TCP": "tcp://10.0.0.7:8888",
        "SPRINGTIDE_EXTENDER_PORT_8888_TCP_ADDR": "10.0.0.7",
        "SPRINGTIDE_CONFIG": "/etc/springtide.yaml",
    }
    assert load_settings(None, links, {}) == Settings()
    assert load_settings(None, {"SPRINGTIDE_EXTENDER_PORT": "80"}, {}).extender.port == 80


def test_null_and_empty_variables_unset_nullable_keys() -> None:
    for text in ("", "null"):
        given = {"SPRINGTIDE_EXPORTER_METRICS_PORT": text, "SPRINGTIDE_KAFKA_SASL_USERNAME": text}
        settings = load_settings(None, given, {})
        assert (settings.exporter.metrics_port, settings.kafka.sasl_username) == (None, None)


def test_host_applications_have_koordinators_field_names(tmp_path: Path) -> None:
    text = (
        "[{name: nginx, priority: koord-prod, qos: LS, "
        "cgroupPath: {base: CgroupRoot, parentDir: host/, relativePath: nginx}}, {name: agent}]"
    )
    in_file = load_settings(write(tmp_path, f"exporter: {{host_applications: {text}}}"), {}, {})
    assert in_file == load_settings(None, {"SPRINGTIDE_EXPORTER_HOST_APPLICATIONS": text}, {})
    nginx, agent = in_file.exporter.host_applications
    path = HostApplicationCgroup(parent_dir="host/", relative_path="nginx")
    assert (nginx.cgroup_path, agent.cgroup_path, agent.qos) == (path, None, "")


@pytest.mark.parametrize("given", ["/kubelet.slice", "kubelet.slice/", "//./kubelet.slice"])
def test_cgroup_parent_accepts_the_kubelets_notation(given: str) -> None:
    settings = load_settings(None, {}, {"exporter.cgroup_parent": given})
    assert settings.exporter.cgroup_parent == "kubelet.slice"


def test_password_is_never_printed() -> None:
    sasl = {
        "SPRINGTIDE_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "SPRINGTIDE_KAFKA_SASL_MECHANISM": "PLAIN",
        "SPRINGTIDE_KAFKA_SASL_USERNAME": "me",
        "SPRINGTIDE_KAFKA_SASL_PASSWORD": "hunter2",
    }
    settings = load_settings(None, sasl, {})
    password = settings.kafka.sasl_password
    assert (password, password and password.reveal()) == (Secret("hunter2"), "hunter2")
    refused = refusal(overrides={"kafka.sasl_password": ["hunter2"]}).message
    assert "hunter2" not in f"{settings} {settings!r} {refused}"
    assert [key for key in KEYS if is_secret(leaf_types()[key])] == ["kafka.sasl_password"]


def test_password_in_an_address_is_never_printed() -> None:
    error = refusal(overrides={"provider.url": "http://me:hunter2@prometheus:9090"})
    assert "http://***@prometheus:9090" in error.message
    assert "hunter2" not in f"{error.message} {error.hint}"


@pytest.mark.parametrize(
    "key",
    [
        "tracing.endpoint", "provider.url", "notifier.alertmanager_urls",
        "node_actuator.extender_url",
    ],
)  # fmt: skip
def test_an_address_has_a_host_and_a_port_in_range(key: str) -> None:
    for valid in ("http://a", "https://a.b:65535/c/", "http://[fd00::1]:9090", "http://10.0.0.1"):
        load_settings(None, {}, {key: valid})
    for invalid in ("http://a:b", "http://a:65536", "http://a:0", "http://:80", "http://[::1"):
        assert repr(invalid) in refusal(overrides={key: invalid}).message


@given(st.sampled_from(KEYS), st.text())
def test_any_variable_is_a_value_or_a_settings_error(key: str, text: str) -> None:
    try:
        load_settings(None, {variable_name(key): text}, {})
    except SettingsError as error:
        assert error.key


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_any_flag_is_a_value_or_a_settings_error(value: object) -> None:
    for key in ("exporter.window_seconds", "exporter.host_applications", "worker.data_dir"):
        try:
            load_settings(None, {}, {key: value})
        except SettingsError as error:
            assert error.key == key


def test_node_name_comes_from_setting_then_variable_then_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Host-1.Example")
    none = Settings().exporter
    given = load_settings(None, {}, {"exporter.node_name": "n-1"}).exporter
    assert node_name(given, {"NODE_NAME": "n-2"}) == "n-1"
    assert node_name(none, {"NODE_NAME": "n-2"}) == "n-2"
    assert node_name(none, {"NODE_NAME": ""}) == "host-1.example"
    with pytest.raises(SettingsError, match="NODE_NAME 'n 2' is not a valid Node name"):
        node_name(none, {"NODE_NAME": "n 2"})


def test_every_setting_has_a_description() -> None:
    described = describe_settings()
    assert [s.key for s in described if not (s.doc.endswith(".") and s.allowed)] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{predictors: []}", "model.predictors: this value is not allowed, allowed is a list"),
        ("{predictors: [vpa]}", "model.predictors: [vpa] is not allowed, allowed is a list "
         "with percentile, the default of model.predictor, or model.predictor set"),
        ("{predictor: oracle}", "model.predictor: 'oracle' is not allowed, allowed is one of"),
        ("{predictors: [vpa], predictor: max}", "model.predictor: 'max' is not allowed"),
        ("{classes: {batch: {half_life_seconds: {cpu: 0}}}}",
         "model.classes.batch.half_life_seconds.cpu: 0 is not allowed, allowed is a number from 1"),
        ("{classes: {free: {horizon_seconds: soon}}}",
         "model.classes.free.horizon_seconds: 'soon' is not allowed, allowed is a number"),
        ("{classes: {free: {histogram: {preset: mine}}}}",
         "model.classes.free.histogram.preset: 'mine' is not allowed, allowed is one of"),
        ("{classes: {free: {half_live: 5}}}",
         "model.classes.free: this value is not allowed, allowed is a mapping of histogram"),
        ("{classes: {free: 5}}", "model.classes.free: 5 is not allowed, allowed is a mapping of"),
        ("{classes: [free]}", "model.classes: [free] is not allowed, allowed is a mapping"),
        ("{predictor_options: {vpa: 5}}", "model.predictor_options.vpa: 5 is not allowed"),
        ("{predictors: [vpa, 5]}", "allowed is a list of names, at least one; wrong is "
         "model.predictors[1] (file"),
    ],
)  # fmt: skip
def test_problem_in_a_mapping_has_the_full_key(text: str, message: str, tmp_path: Path) -> None:
    refused = refusal(write(tmp_path, f"model: {text}")).message
    assert (message in refused, "$" in refused) == (True, False), refused


@pytest.mark.parametrize(
    ("key", "text", "allowed"),
    [
        ("notifier.labels", "foo", "a mapping, written as {name: value}"),
        ("notifier.labels", "a=b", "a mapping, written as {name: value}"),
        ("model.predictors", "vpa", "a list of names, at least one, written as [a, b]"),
    ],
)
def test_value_of_another_type_has_the_way_to_write_it(key: str, text: str, allowed: str) -> None:
    message = refusal(overrides={key: text}).message
    flag = f"--{key.partition('.')[2]}"
    assert message == f"{key}: {text!r} is not allowed, allowed is {allowed} (flag {flag})"


def test_problem_in_a_variable_has_the_full_key() -> None:
    text = "{batch: {half_life_seconds: {cpu: '0'}}, free: {horizon_seconds: -1}}"
    message = refusal(environ={"SPRINGTIDE_MODEL_CLASSES": text}).message
    assert message.startswith("2 settings are invalid")
    assert "model.classes.batch.half_life_seconds.cpu: '0' is not allowed" in message
    assert "model.classes.free.horizon_seconds: -1 is not allowed" in message
    assert "(variable SPRINGTIDE_MODEL_CLASSES)" in message


@pytest.mark.parametrize("text", ["[" * 3000, "!!bool x", "!!timestamp x"])
def test_invalid_yaml_in_a_variable_is_an_error(text: str) -> None:
    message = refusal(environ={"SPRINGTIDE_MODEL_CLASSES": text}).message
    assert re.search("model.classes.*not YAML", message)


def test_problem_in_a_list_has_its_index() -> None:
    given = {"SPRINGTIDE_EXPORTER_HOST_APPLICATIONS": "[{name: a}, {name: b, qos: best}]"}
    assert "exporter.host_applications[1].qos" in refusal(environ=given).message
