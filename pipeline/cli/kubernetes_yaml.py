"""Print objects of Kubernetes as YAML that `kubectl` reads as it was meant."""

import re
from collections.abc import Iterable
from typing import Any, Final

import yaml

# PyYAML and Go differ in what is a number or a truth value: a Deployment may be called 1e3 or y.
_GO_NUMBER: Final = re.compile(r"[-+]?([0-9]+[eE][-+]?[0-9]+|0o[0-7]+)\Z")
_GO_BOOL: Final = re.compile(r"[yYnN]\Z")


class _Dumper(yaml.SafeDumper):
    """Quotes texts that Go would take for something else."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _GO_NUMBER, [*"-+0123456789"])
_Dumper.add_implicit_resolver("tag:yaml.org,2002:bool", _GO_BOOL, [*"yYnN"])


def objects_yaml(objects: Iterable[Any]) -> str:
    """Objects as documents of one file, with their keys in the given order."""
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=100)
