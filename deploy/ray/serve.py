"""Replicas of `octavo serve` under Ray Serve, behind one OpenAI address.

    pip install 'ray[serve]==2.60.0'
    cd deploy/ray && OCTAVO_ARGS='/models/model.gguf -t 8' serve run serve:app
    curl http://127.0.0.1:8000/v1/completions -d '{"prompt": "1+1=", "max_tokens": 8}'

`OCTAVO` names the program (octavo), `OCTAVO_ARGS` its arguments (none: the built-in model),
`OCTAVO_REPLICAS` the number of replicas (2), `OCTAVO_CPUS` the cores that each one is given (1).

Each replica is an actor with a server of its own. Two things are ours, because Serve does neither:

- An actor ends with its server. Otherwise it answers every request with an error until Serve's
  health checks replace it, and being quick at that is given most of them.
- `Front` hands a request to another replica as long as no byte of the answer was sent. A stream
  that has begun breaks off, so that nobody takes a part of a text for the whole.
"""

import asyncio
import os
import shlex
import signal
import socket
import subprocess
import threading
import time
import urllib.request

import aiohttp
from ray import serve
from ray.exceptions import RayError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

REPLICAS = int(os.environ.get("OCTAVO_REPLICAS", "2"))
CPUS = float(os.environ.get("OCTAVO_CPUS", "1"))
DRAIN = 300  # seconds for an answer that is under way when its replica is to end
TRIES = 10
PAUSE = 0.2  # seconds before another try
LOADING = 600  # seconds for a model to load
# what says that another replica, or the same one later, may answer
BUSY = (429, 503)
# headers that are about one connection only
PASSING = ("connection", "content-length", "date", "keep-alive", "transfer-encoding")


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@serve.deployment(
    num_replicas=REPLICAS,
    max_ongoing_requests=64,
    graceful_shutdown_timeout_s=DRAIN,
    health_check_period_s=2,
    ray_actor_options={"num_cpus": CPUS},
)
class Replica:
    """A server, and what passes requests on to it."""

    def __init__(self):
        self.url = f"http://127.0.0.1:{free_port()}"
        self.server = None
        self.is_ending = False
        self.session = None
        # Linux ends the server when the thread that began it ends, so the same one waits for it
        threading.Thread(target=self.run, daemon=True).start()
        self.wait()

    def run(self):
        """Runs the server; ends the actor with it."""
        command = [os.environ.get("OCTAVO", "octavo"), "serve",
                   *shlex.split(os.environ.get("OCTAVO_ARGS", "")),
                   f"--port={self.url.rsplit(':', 1)[1]}", f"--drain={DRAIN}"]
        # an actor that is killed cannot end its server
        tied = ["setpriv", "--pdeathsig", "KILL", *command]
        self.server = subprocess.Popen(tied)
        self.server.wait()
        if not self.is_ending:
            os._exit(1)

    def wait(self):
        """Until the model is loaded."""
        end = time.monotonic() + LOADING
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.1)
        raise TimeoutError(f"octavo serve was not ready within {LOADING} s")

    async def check_health(self):
        """Serve replaces a replica whose server does not work."""
        async with self.client().get(f"{self.url}/live") as response:
            response.raise_for_status()

    def client(self):
        """One for all requests, in the loop that they run in."""
        if self.session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
            self.session = aiohttp.ClientSession(timeout=timeout)
        return self.session

    async def ask(self, method, path, headers, body):
        """Status and headers of an answer, then pieces of its body."""
        request = self.client().request(method, self.url + path, headers=headers, data=body)
        async with request as response:
            kept = {name.lower(): value for name, value in response.headers.items()
                    if name.lower() not in PASSING}
            yield response.status, kept
            async for piece in response.content.iter_any():
                yield piece

    def __del__(self):
        # called once no request is left
        self.is_ending = True
        if self.server is not None and self.server.poll() is None:
            self.server.send_signal(signal.SIGTERM)
            self.server.wait(10)


# it only passes on: cores are for replicas, and where those take all it must find a place too
@serve.deployment(num_replicas=1, max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0})
class Front:
    """The address: passes a request to a replica, and to another one where that fails."""

    def __init__(self, replicas):
        self.replicas = replicas.options(stream=True)

    async def __call__(self, request: Request):
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        headers = {name: value for name, value in request.headers.items()
                   if name not in (*PASSING, "host", "origin")}
        body = await request.body()
        for attempt in range(TRIES):
            is_last = attempt == TRIES - 1
            try:
                answer = self.replicas.ask.remote(request.method, path, headers, body)
                status, said = await anext(answer)
                if status in BUSY and not is_last:
                    await asyncio.sleep(PAUSE)
                    continue
                is_stream = said.get("content-type", "").startswith("text/event-stream")
                if not is_stream:
                    # whole before a byte is sent: what breaks off is asked for again
                    pieces = [piece async for piece in answer]
                    return Response(b"".join(pieces), status, said)
                first = await anext(answer, b"")
                return StreamingResponse(follow(first, answer), status, said)
            except (RayError, aiohttp.ClientError):
                await asyncio.sleep(PAUSE)
        error = {"message": "no replica answers", "type": "unavailable_error"}
        return JSONResponse({"error": error}, 503, {"retry-after": "5"})


async def follow(first, answer):
    """The first piece of a stream, then the others."""
    yield first
    async for piece in answer:
        yield piece


app = Front.bind(Replica.bind())
