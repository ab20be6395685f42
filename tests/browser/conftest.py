"""Chromium, for each file of tests in a browser."""

import pytest

from tests.browser.chromium_files import ChromiumFiles, ensure_chromium
from tests.debian_packages import UnavailableError
from tests.machine import REQUIRE_BROWSER, not_here


@pytest.fixture(scope="module")
def chromium() -> ChromiumFiles:
    try:
        return ensure_chromium()
    except UnavailableError as error:
        not_here(f"no Chromium: {error}", REQUIRE_BROWSER)
