"""What the hostile clients share: a server to attack, a report of how it answers, and a healthy
client beside them.

Every attack must be answered within PATIENCE seconds by a 4xx (or 501, or 503 with Retry-After)
with an object {"error": {"message", "type", "param", "code"}}, or Anthropic's {"type": "error",
"error": {"message", "type"}, "request_id"}, or by the end of the connection where nothing that was
sent is HTTP. Never by a 500, by silence, or by the end of the process. While the attacks run, a
healthy client streams; afterwards no request may be left, and all pages of the cache must be free
or cached.

One line for each finding, a summary at the end; exit code 0 if all is well. Each program takes
under a minute on the built-in model. Standard library only.
"""

import argparse
import http.client
import json
import socket
import threading
import time
from urllib.parse import urlsplit

PATIENCE = 10.0  # seconds for an answer
LIMIT = 50.0  # seconds after which no further attack begins
GAP = 3.0  # seconds that the healthy client may wait for a token
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "1+1="}]


class OutOfTime(Exception):
    """The server was too slow for all attacks to be tried."""


class Server:
    """Where to send things, and how."""

    def __init__(self, url):
        parts = urlsplit(url)
        self.host, self.port = parts.hostname, parts.port or 80
        self.deadline = time.monotonic() + LIMIT

    def connect(self, timeout=PATIENCE):
        return socket.create_connection((self.host, self.port), timeout=timeout)

    def raw(self, data, timeout=PATIENCE):
        """Sends bytes (or an iterable of them) as they are; returns (status, headers, body).

        The status is 0 if the server ended the connection without an answer, -1 if nothing came in
        time.
        """
        if time.monotonic() > self.deadline:
            raise OutOfTime(f"not all was tried within {LIMIT:.0f} s")
        pieces = [data] if isinstance(data, bytes) else data
        with self.connect(timeout) as sock:
            try:
                for piece in pieces:
                    sock.sendall(piece)
            except TimeoutError:
                return -1, {}, b"the server reads no more"
            except OSError:
                pass  # it may answer before it has read all
            return self.read(sock)

    @staticmethod
    def read(sock):
        try:
            response = http.client.HTTPResponse(sock)
            response.begin()
            return response.status, dict(response.getheaders()), response.read()
        except TimeoutError:
            return -1, {}, b""
        except (OSError, http.client.HTTPException) as error:
            return 0, {}, repr(error).encode()

    def post(self, path, body, headers=(), timeout=PATIENCE):
        """Posts JSON, or bytes as they are."""
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        return self.raw(head("POST", path, len(body), headers) + body, timeout)

    def get(self, path, timeout=PATIENCE):
        return self.raw(head("GET", path, None), timeout)

    def json(self, path):
        status, _, body = self.get(path)
        if status != 200:
            raise OSError(f"GET {path}: {status} {body[:200]!r}")
        return json.loads(body)


def head(method, path, length, headers=()):
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    if length is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {length}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode()


class Report:
    """Counts attacks, prints what went wrong."""

    def __init__(self, verbose):
        self.verbose, self.tried, self.faults = verbose, 0, 0
        self.lock = threading.Lock()

    def check(self, name, is_well, what):
        with self.lock:
            self.tried += 1
            self.faults += not is_well
        if not is_well or self.verbose:
            print(f"{'ok   ' if is_well else 'FAULT'} {name}: {what}", flush=True)

    def refused(self, name, answer, statuses=range(400, 500), may_close=False):
        """An answer must be an error of the client, with an error object."""
        status, headers, body = answer
        if may_close and status == 0:
            return self.check(name, True, "connection closed")
        if any(word in body for word in (b"panic", b".gguf", b"/tmp", b"/home")):
            return self.check(name, False, f"tells too much: {body[:200]!r}")
        statuses = [*statuses, 501]
        is_well = status in statuses and is_error(body)
        if status in (429, 503):
            is_well = is_error(body) and "retry-after" in lower(headers)
        return self.check(name, is_well, f"{status} {body[:160].decode(errors='replace')!r}")

    def answered(self, name, answer):
        """An answer must be 200, or a refusal like any other."""
        if answer[0] == 200:
            return self.check(name, True, "200")
        return self.refused(name, answer)


def lower(headers):
    return {name.lower(): value for name, value in headers.items()}


def is_error(body):
    try:
        answer = json.loads(body)
        error, fields = answer["error"], {"message", "type"}
        if isinstance(error, str):
            # Ollama's form
            return answer.keys() == {"error"} and bool(error)
        if answer.get("type") != "error" or "request_id" not in answer:
            fields = {*fields, "param", "code"}
        return fields <= error.keys() and bool(error["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


class Healthy(threading.Thread):
    """A client that streams one text after another, and notes the longest wait for a piece."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.stop = server, threading.Event()
        self.gap, self.texts, self.fault = 0.0, 0, None

    def run(self):
        body = {"prompt": "1+1=", "max_tokens": 100, "ignore_eos": True, "stream": True,
                "temperature": 0, "seed": 1}
        while not self.stop.is_set():
            try:
                self.one(json.dumps(body).encode())
            except OSError as error:
                self.fault = self.fault or repr(error)
                time.sleep(0.1)
            time.sleep(0.01)

    def one(self, body):
        with self.server.connect() as sock:
            last = time.monotonic()
            sock.sendall(head("POST", TEXT, len(body)) + body)
            seen = b""
            while piece := sock.recv(65536):
                now = time.monotonic()
                self.gap, last = max(self.gap, now - last), now
                seen += piece
            if b"[DONE]" not in seen:
                raise OSError(f"a stream without its end: {seen[:120]!r} ... {seen[-120:]!r}")
            self.texts += 1


def wait_idle(server, report, when, patience=PATIENCE):
    """No request is left, and no page of the cache is lost, in both places that say so.

    The healthy client goes on asking, also between the two questions: only one moment at which
    both say so is waited for.
    """
    end = time.monotonic() + patience
    while True:
        slots = server.json("/cache")
        used = slots["pages_total"] - slots["pages_free"] - slots["pages_cached"]
        _, _, text = server.get("/metrics")
        counts = {line.split(b"{")[0].decode(): float(line.rsplit(b" ", 1)[1])
                  for line in text.splitlines()
                  if line.startswith((b"octavo_requests_running", b"octavo_requests_waiting"))}
        is_well = not slots["requests"] and used == 0 and not any(counts.values())
        if is_well or time.monotonic() > end:
            break
        time.sleep(0.05)
    found = f"{len(slots['requests'])} requests, {used} pages, {counts}"
    report.check(f"idle {when}", is_well, found)


def run(description, attacks, beside=None):
    """Reads the arguments, runs the attacks by name, and says what came of them; the exit code.

    `beside` begins attacks that take their time, and gives the threads to be waited for.
    """
    parser = argparse.ArgumentParser(description=description.split("\n\n")[0])
    parser.add_argument("url", help="such as http://127.0.0.1:8080")
    parser.add_argument("--verbose", action="store_true", help="print what went well, too")
    parser.add_argument("--only", help="comma-separated: " + ", ".join(attacks))
    args = parser.parse_args()
    server, report = Server(args.url), Report(args.verbose)
    started = time.monotonic()
    chosen = args.only.split(",") if args.only else list(attacks)
    healthy = Healthy(server)
    healthy.start()
    lingering = beside(server, report) if beside else []
    for name in chosen:
        began = time.monotonic()
        healthy.gap = 0.0
        try:
            attacks[name](server, report)
        except OutOfTime as error:
            report.check(name, False, str(error))
        except OSError as error:
            report.check(name, False, f"the server is gone: {error!r}")
            break
        took, gap = time.monotonic() - began, healthy.gap
        report.check(f"a healthy client beside {name}", gap < GAP,
                     f"waited {gap:.2f} s at most, of {took:.1f} s")
    for thread in lingering:
        thread.join()
    server.deadline += PATIENCE
    healthy.stop.set()
    healthy.join(PATIENCE)
    report.check("the healthy client", healthy.fault is None and healthy.texts > 0,
                 healthy.fault or f"{healthy.texts} texts")
    try:
        wait_idle(server, report, "in the end")
        report.check("health", server.json("/health")["status"] == "ok", "ok")
    except OSError as error:
        report.check("health", False, repr(error))
    took = time.monotonic() - started
    print(f"{report.tried} attacks, {report.faults} faults, {healthy.texts} healthy texts, "
          f"{took:.0f} s")
    return 1 if report.faults else 0
