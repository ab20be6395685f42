"""What scheduler plugins are to run here: a KubeSchedulerConfiguration in a file, or the settings.

Owes the rest: one answer for all who must know it, the extender and who looks for contradictions;
for a file that is of no use an error that names the key.
"""

from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import InvalidPolicyError, SettingsError
from pipeline.processors.placement.kube_config import CONFIGURATION
from pipeline.processors.placement.plugin_config import Placement, read_config, usual
from pipeline.settings import ExtenderSettings
from pipeline.settings.load import StrictLoader

KEY = "extender.scheduler_config_file"


def placement_of(settings: ExtenderSettings) -> Placement:
    """The plugins of the file that the settings name, else LoadAware with their thresholds.

    Raises `SettingsError` for a file that cannot be read or used.
    """
    if settings.scheduler_config_file is None:
        thresholds = {
            "cpu": settings.cpu_threshold_percent,
            "memory": settings.memory_threshold_percent,
        }
        found = usual(thresholds, settings.stale_after_seconds)
        if settings.scheduler_name is None:
            return found
        return found._replace(notes=(f"extender.scheduler_name has no effect without {KEY}",))
    file = Path(settings.scheduler_config_file)
    try:
        return read_config(read_document(file), settings.scheduler_name)
    except OSError as error:
        raise SettingsError(
            f"{KEY}: cannot read {file}: {error.strerror}", key=KEY, hint="name a file"
        ) from error
    except InvalidPolicyError as error:
        raise SettingsError(
            f"{KEY}: {file}: {error.message}",
            key=KEY,
            hint=error.hint
            or "docs/reference/extender.md has the plugins that run here, and their arguments",
        ) from error


def read_document(file: Path) -> Any:
    """The first document of the file that looks like one; there may be others beside it. Raises
    OSError, and `InvalidPolicyError` for what is no YAML."""
    try:
        found = yaml.load_all(file.read_text("utf-8"), Loader=StrictLoader)
        trees = [tree for tree in found if tree is not None]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        text = " ".join(str(error).split())
        raise InvalidPolicyError(f"not valid YAML: {text:.200}") from error
    likely = [tree for tree in trees if isinstance(tree, dict) and _may_be_meant(tree)]
    return next(iter(likely or trees), None)


def _may_be_meant(tree: dict[Any, Any]) -> bool:
    return "profiles" in tree or tree.get("kind") == CONFIGURATION
