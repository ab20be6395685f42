"""The client of rolling restarts tries a refused connection elsewhere, and sees lost answers."""

from aiohttp import web

from pipeline.local.port_probe import free_port
from tests.chaos.scheduler_requests import SchedulerRequests
from tests.processes import until

DROPS: list[bool] = []
"""Not empty: the replica closes connections instead of answering."""


async def replica(request: web.Request) -> web.Response:
    if request.path == "/readyz":
        return web.Response()
    if DROPS:
        assert request.transport is not None
        request.transport.close()
    nodes = (await request.json())["NodeNames"]
    if request.path == "/filter":
        answer = {"NodeNames": nodes[:1], "FailedNodes": {"b": ""}}
        return web.json_response(answer | {"FailedAndUnresolvableNodes": None})
    return web.json_response([{"Host": node, "Score": 0} for node in nodes])


async def test_a_refused_connection_is_no_failure_and_a_dropped_one_is() -> None:
    app = web.Application()
    app.router.add_route("*", "/{path}", replica)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    answering = f"http://127.0.0.1:{runner.addresses[0][1]}"
    ended = f"http://127.0.0.1:{free_port()}"
    requests = SchedulerRequests([ended, answering], ["a", "b"])
    try:
        async with requests.running():
            requests.ready.add(ended)  # until the next probe
            await until(lambda: requests.answers[answering] > 4)
            assert requests.failures == []
            DROPS.append(True)
            await until(lambda: requests.failures)
    finally:
        await runner.cleanup()
    assert requests.answers.keys() == {answering}
    assert "ServerDisconnectedError" in requests.failures[0]
