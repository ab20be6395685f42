"""Chromium and npm packages, for each file of tests in a browser."""

from pathlib import Path

import pytest

from tests.browser.chromium_files import ChromiumFiles, ensure_chromium
from tests.browser.npm_packages import ensure_npm_packages
from tests.debian_packages import UnavailableError
from tests.machine import REQUIRE_BROWSER, not_here


@pytest.fixture(scope="module")
def chromium() -> ChromiumFiles:
    try:
        return ensure_chromium()
    except UnavailableError as error:
        not_here(f"no Chromium: {error}", REQUIRE_BROWSER)


@pytest.fixture(scope="module")
def packages() -> Path:
    try:
        return ensure_npm_packages()
    except UnavailableError as error:
        not_here(f"no npm packages: {error}", REQUIRE_BROWSER)
