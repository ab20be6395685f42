"""docs/adr/0003-faust.md names every Faust setting of ours that is not Faust's default."""

import re
from pathlib import Path

import faust
import pytest

from pipeline.agents.faust_host import create_app
from pipeline.settings import Settings

# Set by who runs it; with our defaults as nothing as Faust's.
GIVEN = {"broker_credentials", "consumer_group_instance_id"}
# Addresses, what follows from datadir, and a name that is new for every app.
NOT_SETTINGS = {"broker", "broker_consumer", "broker_producer", "reply_to", "tabledir"}


@pytest.fixture
def differing(tmp_path: Path) -> set[str]:
    ours = create_app(Settings(), tmp_path).conf
    theirs = faust.App(Settings().worker.id).conf
    return {
        name
        for name in ours.SETTINGS
        if not name.startswith("_")
        and name not in NOT_SETTINGS
        and getattr(ours, name, None) != getattr(theirs, name, None)
    }


@pytest.mark.filterwarnings("ignore:Setting .* is deprecated")
def test_the_table_has_what_differs_and_nothing_else(differing: set[str], project: Path) -> None:
    text = (project / "docs/adr/0003-faust.md").read_text()
    table = set(re.findall(r"^\| `([a-z_]+)` \|", text, re.MULTILINE))
    assert differing - table == set()
    assert table - differing - GIVEN == set()
