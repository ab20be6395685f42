"""What scheduler plugins are to run here: a KubeSchedulerConfiguration in a file, or the settings.

Owes the rest: one answer for all who must know it, the extender and who looks for contradictions;
for a file that is of no use an error that names the key.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import InvalidPolicyError, SettingsError
from pipeline.processors.placement.config import Placement, read_config, usual
from pipeline.settings import ExtenderSettings
from pipeline.settings.load import StrictLoader

KEY = "extender.scheduler_config_file"


def placement_of(settings: ExtenderSettings) -> Placement:
    """The plugins of the file that the settings name, else LoadAware with their thresholds.

    Raises `SettingsError` for a file that cannot be read or used.
    """
    if settings.scheduler_config_file is None:
        unheard = "extender.scheduler_name has no effect without extender.scheduler_config_file"
        thresholds = {
            "cpu": settings.cpu_threshold_percent,
            "memory": settings.memory_threshold_percent,
        }
        found = usual(thresholds, settings.stale_after_seconds)
        return found._replace(notes=(unheard,)) if settings.scheduler_name else found
    file = Path(settings.scheduler_config_file)
    try:
        return read_config(_document(file), settings.scheduler_name)
    except InvalidPolicyError as error:
        raise SettingsError(
            f"{KEY}: {file}: {error.message}",
            key=KEY,
            hint=error.hint
            or "docs/extender.md has the plugins that run here, and their arguments",
        ) from error


def _document(file: Path) -> Any:
    """The first document of the file that may have profiles; ConfigMaps often hold several."""
    try:
        found = yaml.load_all(file.read_text("utf-8"), Loader=StrictLoader)
        trees = [tree for tree in found if tree is not None]
    except OSError as error:
        raise SettingsError(
            f"{KEY}: cannot read {file}: {error.strerror}", key=KEY, hint="name a file"
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        text = " ".join(str(error).split())
        raise InvalidPolicyError(f"neither YAML nor JSON: {text:.200}") from error
    return next(_with_profiles(trees), trees[0] if trees else None)


def _with_profiles(trees: list[Any]) -> Iterator[Any]:
    yield from (tree for tree in trees if isinstance(tree, dict) and "profiles" in tree)
