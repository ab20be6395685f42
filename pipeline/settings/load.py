"""Load settings from defaults, a YAML file, `SPRINGTIDE_` variables and flags; later ones win.

Each value is checked separately, so that an error names its key, value, source and allowed values.
All errors are reported at once. Unknown keys and variables are errors.
"""

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import yaml

from pipeline.errors import SettingsError
from pipeline.input_files import YAML_ERRORS, StrictLoader, read_file, yaml_problem
from pipeline.settings.base import Section
from pipeline.settings.describe import (
    allowed_values,
    is_nullable,
    is_secret,
    is_structured,
    leaf_types,
    plain_types,
    section_types,
)
from pipeline.settings.schema import Settings

_PREFIX = "SPRINGTIDE_"
_LARGEST_FILE_BYTES = 256 * 1024
_POLICY_KINDS = ("ConfigMap", "DeschedulerConfiguration")

# Read by the command line, before settings are loaded.
_NOT_SETTINGS = frozenset({"SPRINGTIDE_CONFIG"})
# The kubelet sets such variables in every container for each Service in its namespace: a Service
# springtide-extender would otherwise set extender.port to "tcp://10.0.0.7:8888".
_SERVICE_LINK_NAME = re.compile(
    r".*_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)"
)
_SERVICE_LINK_VALUE = re.compile(r"(tcp|udp|sctp)://.*")
# An error of msgspec about a type, and the path of the part of the value that has it.
_TYPE_MISMATCH = re.compile(
    r"Expected `[^`]*`(?: of length [^,]*)?, got (?:[^-]*)(?:- at `\$(?P<path>[^`]*)`)?"
)
# User and password in an address.
_PASSWORD = re.compile(r"//[^/?#]*@")

SectionT = TypeVar("SectionT", bound=msgspec.Struct)


def _resolvers() -> dict[str, Any]:
    resolvers = dict(StrictLoader.yaml_implicit_resolvers)
    for first in "oO":
        resolvers.pop(first)
    return resolvers


class _SettingsLoader(StrictLoader):
    """StrictLoader that reads `on` and `off` as text, like YAML 1.2: `off` is a mode."""

    yaml_implicit_resolvers = _resolvers()


class _RawValue(NamedTuple):
    value: object
    source: str
    is_text: bool  # from the environment or a flag: "12" may be a number


class _Problem(NamedTuple):
    key: str
    source: str
    message: str


def variable_name(key: str) -> str:
    """Return the environment variable of a key.

    >>> variable_name("model.half_life_seconds.cpu")
    'SPRINGTIDE_MODEL_HALF_LIFE_SECONDS_CPU'
    """
    return _PREFIX + key.replace(".", "_").upper()


def flag_name(key: str) -> str:
    """Return the flag of a key: its name without the section.

    >>> flag_name("kafka.bootstrap_servers")
    '--bootstrap-servers'
    """
    return "--" + key.split(".", 1)[1].replace(".", "-").replace("_", "-")


def load_settings(
    path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, object]
) -> Settings:
    """Load and validate the settings.

    `path` is the YAML file, or None. Only `SPRINGTIDE_` variables of `environ` are read.
    `overrides` maps dotted keys to values of flags. Raises `SettingsError` with all problems.
    """
    types = leaf_types()
    raw_values: dict[str, _RawValue] = {}
    problems: list[_Problem] = []
    if path is not None:
        for key, value in _flatten(_read_yaml(path), types):
            _collect(
                raw_values, problems, types, key, _RawValue(value, f"file {path}", is_text=False)
            )
    variables = {variable_name(key): key for key in types}
    for variable, text in sorted(_own_variables(environ)):
        raw = _RawValue(text, f"variable {variable}", is_text=True)
        if variable in variables:
            raw_values[variables[variable]] = raw
        else:
            message = f"unknown setting{_did_you_mean(variable, variables, _PREFIX)}"
            problems.append(_Problem(variable, "environment", message))
    for key, value in overrides.items():
        source = f"flag {flag_name(key)}" if key in types else "flag"
        _collect(raw_values, problems, types, key, _RawValue(value, source, isinstance(value, str)))

    return _validated(raw_values, problems, {})


def settings_with(settings: Settings, tree: Mapping[object, object], source: str) -> Settings:
    """Return `settings` with the values of a tree as in a settings file, read from `source`.

    Raises `SettingsError` with all problems.
    """
    types = leaf_types()
    raw_values: dict[str, _RawValue] = {}
    problems: list[_Problem] = []
    for key, value in _flatten(tree, types):
        _collect(raw_values, problems, types, key, _RawValue(value, source, is_text=False))
    usual = {key: reduce(getattr, key.split("."), settings) for key in types}
    return _validated(raw_values, problems, usual)


def _validated(
    raw_values: Mapping[str, _RawValue], problems: list[_Problem], usual: Mapping[str, object]
) -> Settings:
    """Return the settings of `raw_values`, and for other keys of `usual` or the defaults."""
    types = leaf_types()
    values: dict[str, object] = dict(usual)
    for key, raw in raw_values.items():
        try:
            values[key] = _convert(raw, types[key])
        except (msgspec.ValidationError, ValueError) as error:
            problems.extend(_problems(key, raw, types[key], error))
    if not problems:
        settings = _build(Settings, "", values)
        problems = list(_cross_checks(settings, raw_values))
        if not problems:
            return settings
    raise _as_error(problems)


def _read_yaml(path: Path) -> Mapping[object, object]:
    text = read_file(
        path, _LARGEST_FILE_BYTES, error=partial(SettingsError, source=f"file {path}"),
        hint="correct --config or SPRINGTIDE_CONFIG",
    )  # fmt: skip
    try:
        tree = yaml.load(text, Loader=_SettingsLoader)
    except YAML_ERRORS as error:
        raise SettingsError(
            f"the settings file {path} is not valid YAML: {yaml_problem(error)}",
            source=f"file {path}",
            hint="correct the file; docs/reference/settings.md lists every setting",
        ) from error
    if tree is None:
        return {}
    if isinstance(tree, dict) and {"apiVersion", "kind"} <= tree.keys():
        raise SettingsError(
            f"{path} has a Kubernetes object of kind {_shown(tree['kind'])} instead of settings",
            source=f"file {path}",
            hint="roles read it from the cluster: apply its ConfigMap, and check the file with "
            "`springtide policy FILE`"
            if tree["kind"] in _POLICY_KINDS
            else "docs/reference/settings.md lists every setting",
        )
    if not isinstance(tree, dict):
        raise SettingsError(
            f"the settings file {path} contains {_kind(tree)} instead of sections",
            source=f"file {path}",
            hint="write `section:` and below it `key: value`; see docs/reference/settings.md",
        )
    return tree


def _flatten(
    tree: Mapping[object, object], types: Mapping[str, object], prefix: str = ""
) -> Iterator[tuple[str, object]]:
    for name, value in tree.items():
        key = f"{prefix}{name}"
        is_section = any(leaf.startswith(f"{key}.") for leaf in types)
        if is_section and isinstance(value, dict):
            yield from _flatten(value, types, f"{key}.")
        elif is_section and value is None:
            continue  # all keys of the section are commented out
        else:
            yield key, value


def _collect(
    raw_values: dict[str, _RawValue],
    problems: list[_Problem],
    types: Mapping[str, object],
    key: str,
    raw: _RawValue,
) -> None:
    if key in types:
        raw_values[key] = raw
    elif inside := [leaf for leaf in types if leaf.startswith(f"{key}.")]:
        names = ", ".join(leaf.removeprefix(f"{key}.") for leaf in inside)
        message = f"{_kind(raw.value)} instead of a section with the keys {names}"
        problems.append(_Problem(key, raw.source, message))
    else:
        sections = {name.partition(".")[0] for name in types}
        message = f"unknown setting{_did_you_mean(key, sections | types.keys())}"
        problems.append(_Problem(key, raw.source, message))


def _own_variables(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, text in environ.items():
        if not name.startswith(_PREFIX) or name in _NOT_SETTINGS:
            continue
        if _SERVICE_LINK_NAME.fullmatch(name) or _SERVICE_LINK_VALUE.fullmatch(text):
            continue
        yield name, text


def _problems(key: str, raw: _RawValue, kind: Any, error: Exception) -> list[_Problem]:
    """Describe the problems of a refused value; of a mapping those of its entries, by key."""
    inside = []
    for name, entry, entry_kind in _entries(raw, kind):
        try:
            _convert(entry, entry_kind)
        except (msgspec.ValidationError, ValueError) as wrong:
            inside += _problems(f"{key}.{name}", entry, entry_kind, wrong)
    if inside:
        return inside
    shown = "the value" if is_secret(kind) else _shown(raw.value)
    message = f"{shown} is not allowed, allowed is {allowed_values(kind)}"
    if is_structured(kind):
        message += _structure_hint(key, kind, error)
    return [_Problem(key, raw.source, message)]


def _structure_hint(key: str, kind: Any, error: Exception) -> str:
    """Return what is wrong inside of a list or mapping, or how to write one. Types that msgspec
    expects and got, in words of JSON, say less than the allowed values."""
    mismatch = _TYPE_MISMATCH.match(str(error))
    if mismatch is None:
        return f" [{error}]".replace("`$", f"`{key}")
    if mismatch["path"]:
        return f"; wrong is {key}{mismatch['path']}"
    is_list = any(get_origin(part) is tuple for part in plain_types(kind))
    return f", written as {'[a, b]' if is_list else '{name: value}'}"


def _entries(raw: _RawValue, kind: Any) -> Iterator[tuple[object, _RawValue, Any]]:
    """Yield the entries of a mapping with their types; nothing for other values."""
    try:
        value = _read(raw, kind)
    except ValueError:
        return
    if not isinstance(value, dict):
        return
    for part in plain_types(kind):
        hints = section_types(part)
        for name, entry in value.items():
            entry_kind = get_args(part)[1] if get_origin(part) is dict else hints.get(name)
            if entry_kind is not None:
                yield name, raw._replace(value=entry), entry_kind


def _read(raw: _RawValue, kind: Any) -> object:
    """Return the value as YAML parses it. Raises `ValueError`."""
    value = raw.value
    if isinstance(value, Path):
        return str(value)
    if raw.is_text and isinstance(value, str) and is_structured(kind):
        try:
            return yaml.load(value, Loader=_SettingsLoader)
        except YAML_ERRORS as error:
            raise ValueError("not YAML") from error
    return value


def _convert(raw: _RawValue, kind: Any) -> object:
    if raw.is_text and raw.value in ("", "null") and is_nullable(kind):
        return None
    value = _read(raw, kind)
    converted = msgspec.convert(value, kind, strict=not raw.is_text, dec_hook=_from_text)
    if isinstance(converted, float) and not math.isfinite(converted):
        raise ValueError("not finite")
    return converted


def _from_text(kind: type, value: object) -> object:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("not a text")
    return kind(value)


def _build(kind: type[SectionT], prefix: str, values: Mapping[str, object]) -> SectionT:
    fields: dict[str, object] = {}
    for name, hint in get_type_hints(kind).items():
        key = f"{prefix}{name}"
        if isinstance(hint, type) and issubclass(hint, Section):
            fields[name] = _build(hint, f"{key}.", values)
        elif key in values:
            fields[name] = values[key]
    return kind(**fields)


def _cross_checks(settings: Settings, raw_values: Mapping[str, _RawValue]) -> Iterator[_Problem]:
    for section_name in settings.__struct_fields__:
        section: Section = getattr(settings, section_name)
        for name, allowed in section.problems().items():
            key = f"{section_name}.{name}"
            source = raw_values[key].source if key in raw_values else "default"
            value = getattr(section, name)
            yield _Problem(key, source, f"{_shown(value)} is not allowed, allowed is {allowed}")


def _as_error(problems: list[_Problem]) -> SettingsError:
    lines = [f"{problem.key}: {problem.message} ({problem.source})" for problem in problems]
    if len(lines) > 1:
        lines.insert(0, f"{len(problems)} settings are invalid")
    return SettingsError(
        "\n  ".join(lines),
        key=problems[0].key,
        source=problems[0].source,
        hint="docs/reference/settings.md and `--help-all` list every setting",
    )


def _shown(value: object) -> str:
    if value and isinstance(value, tuple | list) and all(isinstance(item, str) for item in value):
        text = f"[{', '.join(value)}]"
    elif isinstance(value, msgspec.Struct | tuple | list | dict):
        return "this value"
    else:
        text = "null" if value is None else repr(value)
    return f"{_PASSWORD.sub('//***@', text):.100}"


def _did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return the question after the known name that is most like `name`, apart from a prefix."""
    names = {entry.removeprefix(prefix): entry for entry in known}
    close = difflib.get_close_matches(name.removeprefix(prefix), names, n=1, cutoff=0.6)
    return f", did you mean {names[close[0]]}?" if close else ""


def _kind(value: object) -> str:
    names = {dict: "a mapping", list: "a list", str: "a text", type(None): "nothing"}
    return names.get(type(value), f"a value of type {type(value).__name__}")
