"""Add the npm package that the console contains to lists of components (SBOM, CycloneDX).

python -m tests.packages.npm_components FILE ...    # part of `make dist`
"""

import base64
import json
import sys
from pathlib import Path
from typing import Any, Final

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.processes import ROOT

NAME: Final = "uplot"
LOCK: Final = ROOT / "tests/browser/npm/package-lock.json"


def component() -> dict[str, Any]:
    """uPlot as a component, with the hash of its package in the registry."""
    package = json.loads(LOCK.read_bytes())["packages"][f"node_modules/{NAME}"]
    algorithm, _, digest = package["integrity"].partition("-")
    assert algorithm == "sha512"
    url = f"pkg:npm/{NAME}@{package['version']}"
    return {
        "bom-ref": url,
        "hashes": [{"alg": "SHA-512", "content": base64.b64decode(digest).hex()}],
        "licenses": [{"license": {"acknowledgement": "declared", "id": package["license"]}}],
        "name": NAME,
        "purl": url,
        "type": "library",
        "version": package["version"],
    }


def with_component(text: str) -> str:
    """The list with this component. Raises ValueError if it does not follow the schema then."""
    document = json.loads(text)
    own = component()
    document["components"] = [*document["components"], own]
    document["dependencies"] = [*document["dependencies"], {"ref": own["bom-ref"]}]
    written = json.dumps(document, indent=2)
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(written)
    if error is not None:
        raise ValueError(f"not CycloneDX 1.6: {error}")
    return written


def main(files: list[str]) -> None:
    for file in map(Path, files):
        file.write_text(with_component(file.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
