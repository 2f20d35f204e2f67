"""Tools of one's own under a law, and the twin of the public APIs: what a call costs, in processor time."""

from __future__ import annotations

from benchmarks.measurement import Measurement, column, repeated

RUNS = 3
CALLS = 4000
CALL_AIM = 20.0  # microseconds of processor time
GOAL_AIM = 100.0
PROXY_AIM = 2.0  # milliseconds
TWIN_AIM = 500.0  # calls a second of one core
ASSESSMENT_AIM = 60.0  # seconds

_INJECT = """
import json, tempfile, time
import resilisim

def plain(number: int) -> int:
    return number

def microseconds(calls, **options):
    tools = resilisim.inject([plain], law={{"base": 1.0, "history": 1.0}}, seed=1, **options)
    tools[0](0)
    begun = time.process_time()
    for number in range(calls):
        tools[0](number)
    taken = time.process_time() - begun
    tools.close()
    return 1e6 * taken / calls

ways = {{
    "plain": lambda: microseconds({calls}),
    "recorded": lambda: microseconds({calls}, record=tempfile.mkdtemp()),
    "goal": lambda: microseconds(500, required=["plain"], turns=600),
    "kept": lambda: microseconds(500, required=["plain"], turns=600, record=tempfile.mkdtemp()),
}}
print(json.dumps({{name: min(way() for _ in range(8)) for name, way in ways.items()}}))
"""

# Client, proxy and server are one process, so that what the proxy adds is the difference to client and server alone.
_PROXY = """
import asyncio, json, time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from mcp import Client
from mcp.client._memory import InMemoryTransport
from mcp.server.mcpserver import MCPServer
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from resilisim import inject
from resilisim.integrations.mcp.proxy import Proxied, ProxyConnection, read_agent

server = MCPServer("own")

@server.tool(structured_output=False)
def plain(number: int) -> str:
    return "done"

@dataclass(frozen=True)
class InProcess(Proxied):
    @asynccontextmanager
    async def connect(self):
        async with InMemoryTransport(server) as streams:
            yield streams

class Streams:
    def __init__(self, streams):
        self.streams = streams
    async def __aenter__(self):
        return self.streams
    async def __aexit__(self, *_):
        await self.streams[1].aclose()

async def milliseconds(client):
    await client.call_tool("plain", {{"number": 0}})
    begun = time.process_time()
    for number in range({calls}):
        await client.call_tool("plain", {{"number": number}})
    return 1e3 * (time.process_time() - begun) / {calls}

async def alone():
    async with Client(InMemoryTransport(server), mode="legacy", cache=None) as client:
        return await milliseconds(client)

async def behind(**asked):
    proxied = InProcess(inject(law=1.0, seed=1, **asked).settings, ("own",))
    async with create_client_server_memory_streams() as (ours, (read, write)):
        async def to_agent(message, related):
            await write.send(SessionMessage(message))
        connection = ProxyConnection(proxied, 1, None, to_agent)
        await connection.open()
        reading = asyncio.create_task(read_agent(read, connection.relay))
        async with Client(Streams(ours), mode="legacy", cache=None) as client:
            taken = await milliseconds(client)
        await reading
        await connection.close(is_orderly=True)
    return taken

def least(play):
    return min(asyncio.run(play()) for _ in range(5))

direct = least(alone)
goal = lambda: behind(required=["plain"], turns={calls} + 10)
print(json.dumps({{"proxy": least(behind) - direct, "goal": least(goal) - direct}}))
"""

# The client is another process, so that the server's own processor time is what is measured.
_TWIN = """
import asyncio, json, subprocess, sys, time
from resilisim.worlds.apis import Address, ApiClient, Twin, TwinLaw
from resilisim.worlds.apis.api import public_apis
from resilisim.worlds.apis.assessment import assess

CLIENT = '''
import asyncio, json, sys
from urllib.parse import urlencode
from resilisim.worlds.apis.api import public_apis

async def one(port, number, calls):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for call in range(calls):
        api = public_apis()[(call + number) % 23]
        path, query, body = api.request(api.example)
        target = f"/~s/{{call}}/{{api.host}}{{path}}" + ("?" + urlencode(query) if query else "")
        sent = b"" if body is None else json.dumps(body).encode()
        length = f"Content-Length: {{len(sent)}}\\\\r\\\\n\\\\r\\\\n"
        head = f"{{api.method}} {{target}} HTTP/1.1\\\\r\\\\nHost: x\\\\r\\\\n{{length}}"
        writer.write(head.encode() + sent)
        answer = await reader.readuntil(b"\\\\r\\\\n\\\\r\\\\n")
        await reader.readexactly(int(answer.lower().partition(b"content-length: ")[2].partition(b"\\\\r\\\\n")[0]))
    writer.close()

async def main(port, connections, calls):
    await asyncio.gather(*(one(port, number, calls // connections) for number in range(connections)))

asyncio.run(main(*map(int, sys.argv[1:])))
'''

async def served(calls):
    async with Twin(TwinLaw(success=1.0, median_seconds=0.0)) as twin:
        port = twin.url.rpartition(":")[2]
        begun = None
        client = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, port, "10", str(calls))
        begun = time.process_time()
        await client.wait()
        taken = time.process_time() - begun
        assert sum(twin.calls.values()) == calls
        return calls / taken

async def both_ends(calls):
    async with Twin(TwinLaw(success=1.0, median_seconds=0.0)) as twin, ApiClient(Address(twin.url), 8) as client:
        apis = public_apis()
        for api in apis:
            await client.call(api, api.example)
        begun = time.process_time()
        for first in range(0, calls, 23):
            await asyncio.gather(*(client.call(api, api.example, first) for api in apis))
        return calls / (time.process_time() - begun)

import tempfile
rates = {{"served": asyncio.run(served({calls})), "both": asyncio.run(both_ends(690))}}
begun, cpu = time.perf_counter(), time.process_time()
assess(public_apis(), 20, out=tempfile.mkdtemp())
print(json.dumps({{**rates, "assess": time.perf_counter() - begun, "cpu": time.process_time() - cpu}}))
"""


def measure(long: bool) -> list[Measurement]:
    """Measure calls of functions under a law, of the twin, and an assessment."""
    inject = repeated(_INJECT.format(calls=CALLS), RUNS)
    proxy = repeated(_PROXY.format(calls=200), RUNS)
    twin = repeated(_TWIN.format(calls=2300), RUNS)
    assessed = max(column(twin, "cpu"))
    return [
        Measurement("a call of a function under a law (`inject`)", "µs", column(inject, "plain"), CALL_AIM),
        Measurement("the same, recorded", "µs", column(inject, "recorded")),
        Measurement("towards a goal, judged by its optimum", "µs", column(inject, "goal"), GOAL_AIM),
        Measurement("the same, recorded", "µs", column(inject, "kept")),
        Measurement("what the MCP proxy adds to a call, all in one process", "ms", column(proxy, "proxy"), PROXY_AIM),
        Measurement("the same, towards a goal", "ms", column(proxy, "goal"), PROXY_AIM),
        Measurement(
            "calls of the twin, for a second of the server's processor time",
            "calls",
            column(twin, "served"),
            TWIN_AIM,
            "higher",
        ),
        Measurement("the same with the client of the APIs, both in one process", "calls", column(twin, "both")),
        Measurement(
            "assessment of all 23 APIs on the twin, 20 calls each",
            "s",
            column(twin, "assess"),
            ASSESSMENT_AIM,
            note=f"of which at most {assessed:.1f} s of processor time",
        ),
    ]
