"""Messages of NRI: what a container runtime asks its plugins, and their answers.

Of the [protocol](https://github.com/containerd/nri/blob/main/pkg/api/api.proto), version v1alpha1,
the fields that are used here. A runtime may send others, which are skipped.

All decoders raise `ContainerRuntimeError` for bytes that are no such message.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.message import DecodeError, Message

from pipeline.errors import ContainerRuntimeError

PLUGIN_SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"
_RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"
_EVENTS: Final = 1 << 3 | 1 << 7
"""CreateContainer and UpdateContainer, events 4 and 8: the first event is the lowest bit."""
_PACKAGE: Final = "springtide.nri"

_SCHEMA: Final = {
    # ttrpc
    "Request": "service=1:string method=2:string payload=3:bytes",
    "Response": "status=1:Status payload=2:bytes",
    "Status": "code=1:int32 message=2:string",
    # NRI
    "RegisterPlugin": "plugin_name=1:string plugin_idx=2:string",
    "Configure": "runtime_name=2:string runtime_version=3:string request_timeout=5:int64",
    "Configured": "events=2:int32",
    "Synchronize": "more=3:bool",
    "Synchronized": "more=2:bool",
    # CreateContainer and UpdateContainer; the latter has `resources`.
    "ContainerEvent": "pod=1:Pod container=2:Container resources=3:Resources",
    "Pod": "name=2:string uid=3:string namespace=4:string labels=5:map annotations=6:map",
    "Container": "id=1:string name=3:string linux=11:LinuxContainer",
    "LinuxContainer": "resources=3:Resources cgroups_path=5:string",
    "Resources": "memory=1:Memory cpu=2:Cpu unified=6:map",
    "Memory": "limit=1:Number swap=3:Number",
    "Cpu": "shares=1:Number quota=2:Number period=3:Number cpus=6:string",
    "Number": "value=1:int64",
    "Created": "adjust=1:Adjustment",
    "Adjustment": "linux=6:LinuxAdjustment",
    "LinuxAdjustment": "resources=2:Resources",
    "Updated": "update=1:Update*",
    "Update": "container_id=1:string linux=2:LinuxUpdate",
    "LinuxUpdate": "resources=1:Resources",
}
"""Messages by our names, which are not on the wire: `field=number:type`, `map` from string to
string, `*` repeated."""

_F = FieldDescriptorProto
_TYPES: Final = {
    "string": _F.TYPE_STRING, "bytes": _F.TYPE_BYTES, "bool": _F.TYPE_BOOL,
    "int32": _F.TYPE_INT32, "int64": _F.TYPE_INT64,
}  # fmt: skip


def _add_field(message: DescriptorProto, text: str) -> None:
    name, _, rest = text.partition("=")
    number, _, kind = rest.partition(":")
    label = _F.LABEL_REPEATED if kind == "map" or kind.endswith("*") else _F.LABEL_OPTIONAL
    field = message.field.add(name=name, number=int(number), label=label)
    kind = kind.removesuffix("*")
    if kind in _TYPES:
        field.type = _TYPES[kind]
        return
    field.type = _F.TYPE_MESSAGE
    if kind != "map":
        field.type_name = f".{_PACKAGE}.{kind}"
        return
    entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
    entry.options.map_entry = True
    _add_field(entry, "key=1:string")
    _add_field(entry, "value=2:string")
    field.type_name = f".{_PACKAGE}.{message.name}.{entry.name}"


def _classes() -> dict[str, type[Message]]:
    file = FileDescriptorProto(name="nri", package=_PACKAGE, syntax="proto3")
    for name, fields in _SCHEMA.items():
        message = file.message_type.add(name=name)
        for field in fields.split():
            _add_field(message, field)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _SCHEMA
    }


_CLASSES: Final = _classes()


class Call(NamedTuple):
    """A call of a method, with its encoded argument."""

    service: str
    method: str
    payload: bytes


class Runtime(NamedTuple):
    """Who calls, and the seconds after which it does not wait for an answer any longer."""

    name: str
    version: str
    timeout_seconds: float


class ContainerResources(NamedTuple):
    """Resources of a container, as in the specification of OCI runtimes. None and the empty text
    are not stated; a limit of -1 is none."""

    cpu_shares: int | None = None
    cpu_quota_us: int | None = None
    cpu_period_us: int | None = None
    cpus: str = ""
    memory_limit_bytes: int | None = None
    memory_swap_bytes: int | None = None
    """Limit of memory and swap together."""
    unified: Mapping[str, str] = {}
    """Texts of files of cgroup v2."""


class ContainerEvent(NamedTuple):
    """A container that is created or updated, with the resources that it shall have; those of an
    update are only what changes."""

    pod_uid: str
    pod_namespace: str
    pod_name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    id: str
    name: str
    cgroups_path: str
    resources: ContainerResources


def decode_call(payload: bytes) -> Call:
    """Decode a request of ttrpc."""
    call = _decode("Request", payload)
    return Call(call.service, call.method, call.payload)


def decode_runtime(payload: bytes) -> Runtime:
    """Decode a call of Configure."""
    message = _decode("Configure", payload)
    return Runtime(message.runtime_name, message.runtime_version, message.request_timeout / 1000)


def decode_event(payload: bytes, *, is_update: bool) -> ContainerEvent:
    """Decode a call of CreateContainer or UpdateContainer."""
    event = _decode("ContainerEvent", payload)
    pod, container = event.pod, event.container
    resources = event.resources if is_update else container.linux.resources
    return ContainerEvent(
        pod.uid, pod.namespace, pod.name, dict(pod.labels), dict(pod.annotations),
        container.id, container.name, container.linux.cgroups_path, _resources(resources),
    )  # fmt: skip


def check_response(payload: bytes) -> None:
    """Raise `ContainerRuntimeError` for a response that is an error."""
    status = _decode("Response", payload).status
    if status.code:
        raise ContainerRuntimeError(f"the runtime answers {status.code}: {status.message:.200}")


def encode_register(name: str, index: str) -> bytes:
    """The call that registers a plugin; plugins are called in the order of their two digits."""
    plugin = _encode("RegisterPlugin", plugin_name=name, plugin_idx=index)
    return _encode("Request", service=_RUNTIME_SERVICE, method="RegisterPlugin", payload=plugin)


def encode_configured() -> bytes:
    """The answer to Configure: the events that are wanted."""
    return _encode("Configured", events=_EVENTS)


def encode_synchronized(payload: bytes) -> bytes:
    """The answer to a call of Synchronize, which updates nothing. A long list comes in parts."""
    return _encode("Synchronized", more=_decode("Synchronize", payload).more)


def encode_created(resources: ContainerResources) -> bytes:
    """The answer to CreateContainer."""
    return _encode("Created", adjust={"linux": {"resources": _stated(resources)}})


def encode_updated(id: str, resources: ContainerResources) -> bytes:
    """The answer to UpdateContainer for the container `id`."""
    update = {"container_id": id, "linux": {"resources": _stated(resources)}}
    return _encode("Updated", update=[update])


def encode_response(payload: bytes) -> bytes:
    """The response of ttrpc with an encoded answer."""
    return _encode("Response", payload=payload)


def encode_error(code: int, text: str) -> bytes:
    """The response of ttrpc that is an error, with a code of gRPC."""
    return _encode("Response", status={"code": code, "message": text})


def _resources(message: Any) -> ContainerResources:
    cpu, memory = message.cpu, message.memory
    return ContainerResources(
        _number(cpu, "shares"), _number(cpu, "quota"), _number(cpu, "period"), cpu.cpus,
        _number(memory, "limit"), _number(memory, "swap"), dict(message.unified),
    )  # fmt: skip


def _stated(resources: ContainerResources) -> dict[str, Any]:
    numbers = {
        "memory": {"limit": resources.memory_limit_bytes},
        "cpu": {
            "shares": resources.cpu_shares,
            "quota": resources.cpu_quota_us,
            "period": resources.cpu_period_us,
        },
    }
    stated: dict[str, Any] = {
        part: {name: {"value": number} for name, number in fields.items() if number is not None}
        for part, fields in numbers.items()
    }
    if resources.cpus:
        stated["cpu"]["cpus"] = resources.cpus
    return {part: fields for part, fields in stated.items() if fields} | {
        "unified": dict(resources.unified)
    }


def _number(message: Any, field: str) -> int | None:
    return int(getattr(message, field).value) if message.HasField(field) else None


def _decode(kind: str, payload: bytes) -> Any:
    try:
        return _CLASSES[kind].FromString(payload)
    except DecodeError as error:
        raise ContainerRuntimeError(f"no message {kind}: {error!s:.200}") from error


def _encode(kind: str, **fields: Any) -> bytes:
    return _CLASSES[kind](**fields).SerializeToString()
