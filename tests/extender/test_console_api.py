"""The console's page and its fleet document, as an extender serves them."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.clock import ManualClock
from pipeline.extender import limits
from pipeline.processors.console.fleet_document import Fleet
from pipeline.table.node_columns import OfferedResources, TableNode
from pipeline.times import format_time
from pipeline.topics.hot_node_policy import HotNodePolicy
from pipeline.topics.resource_amounts import Resources, Usage
from tests.extender.conftest import Start, extender
from tests.table.records import GIB, NOW, node_state, table_of

FILES = Path("pipeline/extender/console")
SCRIPTS = {file.name: file.read_text() for file in FILES.glob("*.js")}


async def fleet_of(client: Any) -> Fleet:
    answer = await client.get("/v1/fleet")
    assert answer.status == 200
    return msgspec.json.decode(await answer.read(), type=Fleet)


async def test_the_document_has_what_the_table_has(start: Start) -> None:
    table = table_of(
        node_state("b", cpu=1.5, predictor="p", peaks={"p": Usage(cpu_cores=2.5)}),
        node_state("a", memory=None, age=500.0),
    )
    table.put_node(TableNode(node="b", hot_nodes=HotNodePolicy(pool="gpu")))
    table.put_node(TableNode(node="c"))
    mid = Resources(cpu_millicores=700, memory_bytes=1 << 30)
    offered = OfferedResources(
        node="b", as_of=format_time(NOW), epoch=1, generation=1, offset=0, mid=mid
    )
    table.put_resources(offered)
    fleet = await fleet_of(await start(extender(table)))
    assert (fleet.name, fleet.stale) == (["a", "b", "c"], [True, False, True])
    assert [fleet.pools[index] for index in fleet.pool] == [
        "__default_node_pool__", "gpu", "__default_node_pool__",
    ]  # fmt: skip
    assert fleet.cpu_usage_millicores == [1000, 1500, None]
    assert fleet.cpu_peak_millicores == [None, 2500, None]
    assert fleet.memory_usage_mebibytes == [None, 4096, None]
    assert fleet.cpu_mid_millicores == [None, 700, None]
    assert fleet.memory_mid_mebibytes == [None, 1024, None]
    assert fleet.cpu_batch_millicores == [None, None, None]


async def test_an_unchanged_table_costs_304_and_a_change_is_seen(start: Start) -> None:
    table, clock = table_of(node_state("a")), ManualClock(NOW)
    client = await start(extender(table, clock=clock))
    tag = (await client.get("/v1/fleet")).headers["ETag"]
    clock.jump(2.0)
    answer = await client.get("/v1/fleet", headers={"If-None-Match": tag})
    assert (answer.status, await answer.read()) == (304, b"")
    table.put_state(node_state("a", cpu=3.0, memory=5 * GIB, age=0.0, offset=1))
    clock.jump(2.0)
    answer = await client.get("/v1/fleet", headers={"If-None-Match": tag})
    assert (answer.status, (await answer.json())["cpu_usage_millicores"]) == (200, [3000])


async def test_a_node_becomes_stale_without_a_change_of_the_table(start: Start) -> None:
    clock = ManualClock(NOW)
    client = await start(extender(table_of(node_state("a")), clock=clock))
    assert (await fleet_of(client)).stale == [False]
    clock.jump(3600.0)
    assert (await fleet_of(client)).stale == [True]


async def test_many_clients_cause_one_document_a_second(start: Start) -> None:
    table, clock = table_of(node_state("a")), ManualClock(NOW)
    client = await start(extender(table, clock=clock))
    await fleet_of(client)
    table.put_state(node_state("b"))
    assert (await fleet_of(client)).name == ["a"]
    clock.jump(limits.DOCUMENT_SECONDS)
    assert (await fleet_of(client)).name == ["a", "b"]


async def test_a_table_that_is_not_caught_up_has_no_document(start: Start) -> None:
    client = await start(extender(caught_up=False))
    assert (await client.get("/v1/fleet")).status == 503
    assert (await client.get("/console")).status == 200


@pytest.mark.parametrize("path", ["/console", "/console/console.js", "/v1/fleet"])
async def test_answers_forbid_everything_that_the_page_does_not_need(
    start: Start, path: str
) -> None:
    answer = await (await start()).get(path)
    policy = answer.headers["Content-Security-Policy"]
    assert answer.status == 200
    assert "unsafe" not in policy
    assert {"default-src 'none'", "frame-ancestors 'none'", "script-src 'self'"} <= {
        *policy.split("; ")
    }
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_a_slash_behind_the_address_leads_to_the_page(start: Start) -> None:
    client = await start()
    answer = await client.get("/console/", allow_redirects=False)
    assert (answer.status, answer.headers["Location"]) == (308, "../console")
    answer = await client.get("/console/")
    assert (answer.status, answer.url.path) == (200, "/console")


@pytest.mark.parametrize("path", ["/console", "/v1/fleet"])
async def test_a_tag_is_known_in_any_form_that_http_allows(start: Start, path: str) -> None:
    client = await start()
    tag = (await client.get(path)).headers["ETag"]
    assert tag.startswith('W/"')  # Bytes differ by encoding.
    for known in (tag, f'"other", {tag}', tag.removeprefix("W/"), "*"):
        assert (await client.get(path, headers={"If-None-Match": known})).status == 304
        assert (await client.head(path, headers={"If-None-Match": known})).status == 304
    for known in ('"other"', "garbage", ""):
        assert (await client.get(path, headers={"If-None-Match": known})).status == 200


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip, br", "gzip"), ("br;q=1.0, GZIP;q=0.8", "gzip"), ("gzip;q=0", None),
        ("br, gzip ; q=0.000", None), ("identity", None), ("x-gzip-no", None), ("", None),
    ],
)  # fmt: skip
async def test_the_client_says_whether_it_takes_gzip(
    start: Start, accepted: str, encoding: str | None
) -> None:
    client = await start()
    for path in ("/console/console.js", "/v1/fleet"):
        answer = await client.head(path, headers={"Accept-Encoding": accepted})
        assert (answer.status, answer.headers.get("Content-Encoding")) == (200, encoding)


async def test_files_outside_the_page_are_not_served(start: Start) -> None:
    client = await start()
    for name in ("..%2fconsole_api.py", "uplot.LICENSE", "none.js", "%2e%2e"):
        assert (await client.get(f"/console/{name}")).status == 404


async def test_every_file_that_the_page_names_is_served(start: Start) -> None:
    client = await start()
    page = await (await client.get("/console")).text()
    named = {*re.findall(r'(?:href|src)="(console/[^"]+)"', page)}
    for script in SCRIPTS.values():
        imported = re.findall(r'^import .* from "\./([^"]+)";$', script, re.MULTILINE)
        named |= {f"console/{name}" for name in imported}
    assert len(named) >= 8
    for name in named:
        answer = await client.get(f"/{name}")
        assert (answer.status, await answer.read()) == (200, (FILES.parent / name).read_bytes())


def test_the_page_has_no_way_to_make_html_of_a_text() -> None:
    for name, script in SCRIPTS.items():
        if name != "uplot.js":
            ways = r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|Function\("
            assert re.findall(ways, script) == [], name
    # Only texts of its own go into the chart's labels, and its legend, which is HTML, is off.
    charts = [script for script in SCRIPTS.values() if 'from "./uplot.js"' in script]
    assert charts
    assert all("legend: { show: false }" in script for script in charts)
