"""Where settings come from: defaults, one YAML file, `SPRINGTIDE_` variables, flags; later wins.

Every value is checked by itself, so that an error can name its key, the value, the source and
what is allowed; all are reported at once. Unknown keys and unknown variables are errors, too.
"""

import difflib
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import yaml

from pipeline.errors import SettingsError
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
_MERGE = "tag:yaml.org,2002:merge"
# Read by the command line itself, before there are settings.
_NOT_SETTINGS = frozenset({"SPRINGTIDE_CONFIG"})
# The kubelet gives every container such variables for every Service in its namespace: one called
# springtide-extender would otherwise set extender.port to "tcp://10.0.0.7:8888".
_SERVICE_LINK_NAME = re.compile(
    r".*_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)"
)
_SERVICE_LINK_VALUE = re.compile(r"(tcp|udp|sctp)://.*")
# Of an address, who asks and the password.
_PASSWORD = re.compile(r"//[^/?#]*@")

SectionT = TypeVar("SectionT", bound=msgspec.Struct)


class _Given(NamedTuple):
    value: object
    source: str
    is_text: bool  # from the environment or a flag: "12" may be a number


class _Problem(NamedTuple):
    key: str
    source: str
    message: str


def variable_name(key: str) -> str:
    """The environment variable of a key.

    >>> variable_name("model.half_life_seconds.cpu")
    'SPRINGTIDE_MODEL_HALF_LIFE_SECONDS_CPU'
    """
    return _PREFIX + key.replace(".", "_").upper()


def flag_name(key: str) -> str:
    """The flag of a key: its name without the section.

    >>> flag_name("kafka.bootstrap_servers")
    '--bootstrap-servers'
    """
    return "--" + key.split(".", 1)[1].replace(".", "-").replace("_", "-")


def load_settings(
    path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, object]
) -> Settings:
    """The settings in force.

    `path` is the YAML file, or None; of `environ` only `SPRINGTIDE_` variables are read;
    `overrides` maps dotted keys to values of flags. Raises SettingsError, which lists all that
    is wrong.
    """
    types = leaf_types()
    given: dict[str, _Given] = {}
    problems: list[_Problem] = []
    if path is not None:
        for key, value in _flatten(_read_yaml(path), types):
            _collect(given, problems, types, key, _Given(value, f"file {path}", is_text=False))
    variables = {variable_name(key): key for key in types}
    for variable, text in sorted(_own_variables(environ)):
        found = _Given(text, f"variable {variable}", is_text=True)
        if variable in variables:
            given[variables[variable]] = found
        else:
            message = f"unknown setting{_did_you_mean(variable, variables)}"
            problems.append(_Problem(variable, found.source, message))
    for key, value in overrides.items():
        source = f"flag {flag_name(key)}" if key in types else "flag"
        _collect(given, problems, types, key, _Given(value, source, isinstance(value, str)))

    values: dict[str, object] = {}
    for key, found in given.items():
        try:
            values[key] = _convert(found, types[key])
        except (msgspec.ValidationError, ValueError) as error:
            problems.extend(_problems(key, found, types[key], error))
    if not problems:
        settings = _build(Settings, "", values)
        problems = list(_cross_checks(settings, given))
        if not problems:
            return settings
    raise _as_error(problems)


def _read_yaml(path: Path) -> Mapping[object, object]:
    try:
        tree = yaml.load(path.read_text("utf-8"), Loader=StrictLoader)
    except OSError as error:
        raise SettingsError(
            f"cannot read the settings file {path}: {error.strerror}",
            source=f"file {path}",
            hint="check --config and SPRINGTIDE_CONFIG",
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        text = " ".join(str(error).split())
        raise SettingsError(
            f"the settings file {path} is not valid YAML: {text}", source=f"file {path}"
        ) from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise SettingsError(
            f"the settings file {path} holds {_kind(tree)} where sections are due",
            source=f"file {path}",
            hint="write `section:` and below it `key: value`; see docs/reference/settings.md",
        )
    return tree


class StrictLoader(yaml.SafeLoader):
    """SafeLoader, for which a key given twice is an error and not the last one's victory."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen = set()
        # As it is written: by `<<` keys of another mapping may come in, which these override.
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            if (key.tag, key.value) in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {key.value!r} is given twice", problem_mark=key.start_mark
                )
            seen.add((key.tag, key.value))
        return node


def _flatten(
    tree: Mapping[object, object], types: Mapping[str, object], prefix: str = ""
) -> Iterator[tuple[str, object]]:
    for name, value in tree.items():
        key = f"{prefix}{name}"
        is_section = any(leaf.startswith(f"{key}.") for leaf in types)
        if is_section and isinstance(value, dict):
            yield from _flatten(value, types, f"{key}.")
        elif is_section and value is None:
            continue  # a section whose keys are all commented out
        else:
            yield key, value


def _collect(
    given: dict[str, _Given],
    problems: list[_Problem],
    types: Mapping[str, object],
    key: str,
    found: _Given,
) -> None:
    if key in types:
        given[key] = found
    elif inside := [leaf for leaf in types if leaf.startswith(f"{key}.")]:
        names = ", ".join(leaf.removeprefix(f"{key}.") for leaf in inside)
        message = f"{_kind(found.value)} where a section is due, its keys are {names}"
        problems.append(_Problem(key, found.source, message))
    else:
        message = f"unknown setting{_did_you_mean(key, types)}"
        problems.append(_Problem(key, found.source, message))


def _own_variables(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, text in environ.items():
        if not name.startswith(_PREFIX) or name in _NOT_SETTINGS:
            continue
        if _SERVICE_LINK_NAME.fullmatch(name) or _SERVICE_LINK_VALUE.fullmatch(text):
            continue
        yield name, text


def _problems(key: str, found: _Given, kind: Any, error: Exception) -> list[_Problem]:
    """What is wrong in a value that was refused: of a mapping entry by entry, each by its own key,
    as far as it is their fault."""
    inside = []
    for name, entry, entry_kind in _entries(found, kind):
        try:
            _convert(entry, entry_kind)
        except (msgspec.ValidationError, ValueError) as wrong:
            inside += _problems(f"{key}.{name}", entry, entry_kind, wrong)
    if inside:
        return inside
    shown = "the value" if is_secret(kind) else _shown(found.value)
    detail = f" [{error}]".replace("`$", f"`{key}") if is_structured(kind) else ""
    message = f"{shown} is not allowed, allowed is {allowed_values(kind)}{detail}"
    return [_Problem(key, found.source, message)]


def _entries(found: _Given, kind: Any) -> Iterator[tuple[object, _Given, Any]]:
    """The entries of a mapping, and what each is to be; none of what is no mapping."""
    try:
        value = _read(found, kind)
    except ValueError:
        return
    if not isinstance(value, dict):
        return
    for part in plain_types(kind):
        hints = section_types(part)
        for name, entry in value.items():
            entry_kind = get_args(part)[1] if get_origin(part) is dict else hints.get(name)
            if entry_kind is not None:
                yield name, found._replace(value=entry), entry_kind


def _read(found: _Given, kind: Any) -> object:
    """The value as YAML would have it. Raises ValueError."""
    value = found.value
    if isinstance(value, Path):
        return str(value)
    if found.is_text and isinstance(value, str) and is_structured(kind):
        try:
            return yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ValueError("not YAML") from error
    return value


def _convert(found: _Given, kind: Any) -> object:
    if found.is_text and found.value in ("", "null") and is_nullable(kind):
        return None
    value = _read(found, kind)
    converted = msgspec.convert(value, kind, strict=not found.is_text, dec_hook=_from_text)
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


def _cross_checks(settings: Settings, given: Mapping[str, _Given]) -> Iterator[_Problem]:
    for section_name in settings.__struct_fields__:
        section: Section = getattr(settings, section_name)
        for name, allowed in section.problems().items():
            key = f"{section_name}.{name}"
            source = given[key].source if key in given else "default"
            value = getattr(section, name)
            yield _Problem(key, source, f"{_shown(value)} is not allowed, allowed is {allowed}")


def _as_error(problems: list[_Problem]) -> SettingsError:
    lines = [f"{problem.key}: {problem.message} ({problem.source})" for problem in problems]
    if len(lines) > 1:
        lines.insert(0, f"{len(problems)} settings are wrong")
    return SettingsError(
        "\n  ".join(lines),
        key=problems[0].key,
        source=problems[0].source,
        hint="docs/reference/settings.md and `--help` list every setting",
    )


def _shown(value: object) -> str:
    if isinstance(value, msgspec.Struct | tuple | list | dict):
        return "what is given"
    return "null" if value is None else f"{_PASSWORD.sub('//***@', repr(value)):.100}"


def _did_you_mean(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f", did you mean {close[0]}?" if close else ""


def _kind(value: object) -> str:
    names = {dict: "a mapping", list: "a list", str: "a text", type(None): "nothing"}
    return names.get(type(value), f"a {type(value).__name__}")
