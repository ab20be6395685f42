"""The parts of the chart's values.schema.json that come from the settings, or that values share.

python -m tests.deploy.values_schema    # `make docs`
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from pipeline.settings import Secret, Settings
from tests.deploy.helm import CHART

PATH: Final = CHART / "values.schema.json"

CHART_KEYS: Final = frozenset({
    # Passwords and keys come from Secrets.
    "kafka.sasl_password", "kafka.ssl_ca_file", "kafka.ssl_cert_file", "kafka.ssl_key_file",
    "extender.tls_cert_file", "extender.tls_key_file", "extender.tls_client_ca_file",
    "webhook.tls_cert_file", "webhook.tls_key_file",
    # The chart mounts these, or names them.
    "extender.scheduler_config_file", "exporter.cgroup_root", "exporter.proc_root",
    "exporter.sys_root", "exporter.node_name", "exporter.socket_path", "archive.directory",
    "worker.data_dir", "worker.instance_id", "worker.supervise", "worker.nodes_file",
    "worker.pods_file", "worker.policy_file", "node_actuator.state_file",
    "kubernetes.kubeconfig", "kubernetes.context", "kubernetes.namespace",
})  # fmt: skip
"""Settings that the chart decides, or that make no sense in it: values cannot set them."""

_PORT_NAMES: Final = frozenset({"port", "metrics_port"})
_PORT: Final = {
    "description": "Port of the container, which its probes and its Service name.",
    "type": "integer",
    "minimum": 1,
    "maximum": 65535,
}
"""A role itself could also take any free port, or have none."""


CHART_DEFINITIONS: Final[dict[str, Any]] = {
    "ObjectName": {
        "description": "Name of an object of Kubernetes.",
        "type": "string",
        "pattern": "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$",
    },
    "Replicas": {
        "description": "Number of pods.",
        "type": "integer",
        "minimum": 1,
        "maximum": 4096,
    },
    "Quantity": {
        "description": "A quantity of Kubernetes, such as 250m or 1Gi.",
        "type": ["number", "string"],
        "minimum": 0,
        "pattern": r"^([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]+)?$",
    },
    "Quantities": {
        "description": "Quantities by resource.",
        "type": "object",
        "additionalProperties": {"$ref": "#/$defs/Quantity"},
    },
}
"""What several values outside `settings` share. The API server would refuse other values when Helm
has created a part of the release."""


def _custom_type(kind: type) -> dict[str, Any]:
    if kind is Path:
        return {"type": "string", "minLength": 1}
    if kind is Secret:
        return {"type": "string"}
    raise NotImplementedError(kind)


def settings_schema() -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of the value `settings`, and the definitions that it refers to."""
    sections = {field.name: field.type for field in msgspec.structs.fields(Settings)}
    fields = [
        (f"{section}.{field.name}", field.type)
        for section, kind in sections.items()
        for field in msgspec.structs.fields(kind)
        if f"{section}.{field.name}" not in CHART_KEYS
    ]
    schemas, definitions = msgspec.json.schema_components(
        [kind for _, kind in fields], schema_hook=_custom_type, ref_template="#/$defs/{name}"
    )
    properties: dict[str, Any] = {
        section: _object((kind.__doc__ or "").partition("\n")[0], {})
        for section, kind in sections.items()
    }
    for (key, _), schema in zip(fields, schemas, strict=True):
        section, _, name = key.partition(".")
        properties[section]["properties"][name] = _PORT if name in _PORT_NAMES else schema
    text = "The settings file of all roles; docs/reference/settings.md describes each key."
    for definition in definitions.values():
        definition["additionalProperties"] = False
    return _object(text, properties), definitions


def _object(description: str, properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "description": description, "type": "object", "additionalProperties": False,
        "properties": properties,
    }  # fmt: skip


def _require(schema: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Let the schema refuse `null` for what templates read: Helm removes the default of such a key.

    A role without `resources` or `replicas` is well formed, a pod without `runAsUser` gets one from
    its platform or its image, and empty texts, lists and free mappings are well formed as well.
    """
    required = []
    for name, part in schema["properties"].items():
        if name not in values or name in ("resources", "replicas", "runAsUser"):
            continue
        if "properties" in part and name != "settings":
            _require(part, values[name])
        if "properties" in part or part["type"] in ("boolean", "integer") or "minLength" in part:
            required.append(name)
    if required:
        schema["required"] = sorted(required)


def schema_text() -> str:
    """The whole file, with the present schema of the settings."""
    tree = json.loads(PATH.read_text())
    tree["properties"]["settings"], definitions = settings_schema()
    tree["$defs"] = CHART_DEFINITIONS | definitions
    _require(tree, yaml.safe_load((CHART / "values.yaml").read_text()))
    tree["properties"]["settings"]["required"] = ["kafka"]
    tree["properties"]["settings"]["properties"]["kafka"]["required"] = ["bootstrap_servers"]
    return json.dumps(tree, indent=2) + "\n"


if __name__ == "__main__":
    PATH.write_text(schema_text())
