#!/usr/bin/env python3
"""Thousands of requests of all kinds at once, from clients honest, hasty and confused.

    octavo serve --port 8080 --kv-pages 40 --parallel 8 --queue 64 &
    soak.py http://127.0.0.1:8080 --requests 2000 --seed 1 [--pid PID]

With --all, all interfaces and samplers are asked, responses are stored, continued, cancelled and
deleted, and the models are those that the server lists, each loaded when it is asked for:

    octavo serve --models DIR --models-max 2 --lookup on --kv-pages 40 --parallel 8 --queue 64 \
        --response-store $(mktemp -d) --port 8080 &
    soak.py http://127.0.0.1:8080 --all --requests 10000 --limit 3600 --pid $!

Of all clients 20 % leave before their answer is complete (at once, while it is made, or after some
of it) and 5 % send nonsense. Every other request must end, within PATIENCE seconds, with 200 and an
answer of the right form, or be turned away with 429 or 503 and Retry-After: then it is sent again.
Greedy texts of the same prompt must be the same, whoever else is served meanwhile. In the end no
request may be left and every page of the cache must be free or cached. With --pid, on Linux, the
clients pause after the first 1,000 requests (5,000 with --all), or the first half of fewer: from
there to the end, what the server keeps when it is idle must not grow by 1 % of what it took at
work. (Of what it keeps itself, a few dozen pages of the allocator's would be as much with the
built-in model. Models that come and go spread what is kept over more pages, for which 2 MiB are
added.) In the end it must use no CPU.

One line for each finding, a summary at the end; exit code 0 if all is well. 2,000 requests take
less than two minutes on the built-in model. Standard library only.
"""

import argparse
import collections
import http.client
import json
import os
import random
import socket
import sys
import threading
import time
from urllib.parse import urlsplit

import soak_others

PATIENCE = soak_others.PATIENCE
LIMIT = 85.0  # seconds in which all requests must be done, by default
EARLY = 1000  # requests after which the server has seen all kinds of them,
EARLY_ALL = 5000  # and after which its heap has taken its shape where models come and go
SHAPE = 2048  # KiB by which that shape changes from one rest to the next: the same 3 MB in use
              # (malloc_stats) lie on 8 MB of pages after 1,000 requests, then on 9.4 to 11.3 MB
REST = 3.0  # seconds in which an idle server gives memory back
GROWTH = 1.0  # percent
IDLE = 2.0  # seconds for which the CPU time of an idle server is watched
BUSY = 0.01  # of a CPU, which an idle server must not use
WORDS = "1+1= 2+2= one two three Grüße 漢字 🦀🦀 {\"a\": hello the of \n\n <|im_start|> é".split(" ")
SCHEMA = {"type": "object", "required": ["a", "b"], "additionalProperties": False, "properties": {
    "a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"type": "string", "maxLength": 6}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {
    "type": "object", "properties": {"x": {"enum": ["a", "b"]}}, "required": ["x"]}}}
NONSENSE = [
    b"{", b"[]", b"null", b"\xff", b'{"prompt": 1}', b'{"messages": [{}]}', b"[" * 100_000,
    b'{"prompt": "a", "messages": [{"role": "user", "content": "a"}], "n": 1000}',
    b'{"prompt": "a", "messages": [], "temperature": -1}', b'{"prompt": "a", "max_tokens": "x"}',
    b'{"prompt": [999999999], "messages": 1}',
    b'{"prompt": "' + b"a b " * 5000 + b'", "messages": [{"role": "user", "content": "'
    + b"a b " * 5000 + b'"}]}',
]


class Hung(Exception):
    """No answer in time."""


class Soak:
    def __init__(self, args):
        parts = urlsplit(args.url)
        self.address = parts.hostname, parts.port or 80
        self.args = args
        self.lock = threading.Lock()
        self.next = 0
        self.counts = collections.Counter()
        self.faults = collections.Counter()
        self.greedy = {}  # what was asked -> the text
        self.slowest = 0.0
        self.peaks = []  # memory while it works, in KiB: the most of each phase
        self.rests = []  # memory at rest after each phase
        self.end = time.monotonic() + args.limit
        self.models = []  # names, if there are several
        self.stored = collections.deque()  # models and ids of responses

    # --- one request

    def fault(self, what):
        with self.lock:
            self.faults[what.split(":")[0]] += 1
            if sum(self.faults.values()) <= 50:
                print(f"FAULT {what}", flush=True)

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def connect(self):
        return socket.create_connection(self.address, timeout=PATIENCE)

    def send(self, sock, path, body):
        head = (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n")
        sock.sendall(head.encode() + body)

    def ask(self, path, body):
        """Status, headers and body of an answer."""
        try:
            with self.connect() as sock:
                self.send(sock, path, body)
                response = http.client.HTTPResponse(sock)
                response.begin()
                return response.status, response.headers, response.read()
        except TimeoutError as error:
            raise Hung(path) from error

    def get(self, path, method="GET"):
        connection = http.client.HTTPConnection(*self.address, timeout=PATIENCE)
        connection.request(method, path)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        if response.status != 200:
            raise OSError(f"{method} {path}: {response.status} {body[:200]!r}")
        return body

    # --- what to ask

    def make(self, rng):
        """A request: path, body, and what is to be checked of its answer."""
        prompt = " ".join(rng.choices(WORDS, k=rng.choice([1, 3, 10, 30, 60])))
        common = {"temperature": rng.choice([0, 0, 1]), "stream": rng.random() < 0.5,
                  "max_tokens": rng.choice([1, 4, 16, 64]), "seed": rng.randrange(1000)}
        if rng.random() < 0.3:
            common["ignore_eos"] = True
        if rng.random() < 0.2:
            common["stop"] = [rng.choice(["2", "e", "\n"])]
        kinds = ["chat", "chat", "text", "text", "n", "echo", "embed", "responses", "schema",
                 "tool", "native", "tokenize"]
        kind = rng.choice(kinds + self.args.all * soak_others.KINDS)
        if kind in soak_others.KINDS:
            return kind, *soak_others.make(kind, rng, prompt, self.stored)
        chat = {"messages": [{"role": "user", "content": prompt}], **common}
        if kind == "text":  # from a few prompts, so that texts can be compared
            few = random.Random(rng.randrange(20))
            prompt = " ".join(few.choices(WORDS, k=few.choice([2, 20, 50])))
            return kind, "/v1/completions", {**common, "prompt": prompt}
        return kind, *{
            "chat": ("/v1/chat/completions", chat),
            "n": ("/v1/completions", {**common, "prompt": [prompt, "1+1="], "n": 2}),
            "echo": ("/v1/completions", {**common, "prompt": prompt, "echo": True, "logprobs": 2}),
            "embed": ("/v1/embeddings", {"input": [prompt, "a"]}),
            # stored responses would be kept in memory until there are thousands
            "responses": ("/v1/responses", {"input": prompt, "stream": common["stream"],
                                            "max_output_tokens": 16, "store": False}),
            "schema": ("/v1/chat/completions", {
                **chat, "stop": None, "ignore_eos": None, "response_format": {
                    "type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}),
            "tool": ("/v1/chat/completions", {**chat, "stop": None, "ignore_eos": None,
                                              "tools": [TOOL], "tool_choice": "required"}),
            "native": ("/completion", {"prompt": prompt, "n_predict": 8,
                                       "stream": common["stream"]}),
            "tokenize": ("/tokenize", {"content": prompt, "with_pieces": True}),
        }[kind]

    # --- what became of it

    def check(self, kind, body, answer):
        """Raises ValueError if an answer is not of the right form."""
        stream = body.get("stream")
        if stream:
            pieces = [json.loads(line[6:]) for line in answer.split(b"\n")
                      if line.startswith(b"data: {")]
            if any("error" in piece and piece["error"] for piece in pieces):
                raise ValueError(f"an error in the stream: {answer[-300:]!r}")
            if kind not in ("responses", "native") and not answer.endswith(b"data: [DONE]\n\n"):
                raise ValueError(f"a stream without its end: {answer[-100:]!r}")
            if kind == "responses" and pieces[-1]["type"] not in ("response.completed",
                                                                  "response.incomplete"):
                raise ValueError(f"a stream without its end: {pieces[-1]}")
            if kind in ("responses", "native"):
                return
            choices = [choice for piece in pieces for choice in piece["choices"]]
        else:
            value = json.loads(answer)
            if kind == "embed":
                assert len(value["data"]) == 2 and value["data"][0]["embedding"], "no vectors"
            if kind == "tokenize":
                assert value["count"] == len(value["tokens"]), "tokens do not add up"
            choices = value.get("choices", [])
        if kind in ("embed", "tokenize", "responses", "native"):
            return
        texts, reasons = collections.defaultdict(str), {}
        calls = collections.defaultdict(str)
        for choice in choices:
            index, message = choice["index"], choice.get("delta") or choice.get("message") or {}
            texts[index] += choice.get("text") or message.get("content") or ""
            for call in message.get("tool_calls") or []:
                calls[index] += call["function"]["arguments"]
            if choice["finish_reason"]:
                assert index not in reasons, "ended twice"
                reasons[index] = choice["finish_reason"]
        assert sorted(reasons) == list(range(4 if kind == "n" else 1)), f"ends: {reasons}"
        if kind == "schema" and reasons[0] == "stop":
            value = json.loads(texts[0])
            assert 0 <= value["a"] <= 99 and len(value["b"]) <= 6, f"not of the schema: {texts[0]}"
        if kind == "tool" and reasons[0] == "tool_calls":
            assert json.loads(calls[0])["x"] in ("a", "b"), f"not of the schema: {calls[0]}"
        if kind == "text" and body["temperature"] == 0:
            asked = json.dumps({**body, "stream": None, "seed": None}, sort_keys=True)
            with self.lock:
                before = self.greedy.setdefault(asked, texts[0])
            assert before == texts[0], f"greedy texts differ: {before!r} and {texts[0]!r}"

    def one(self, n):
        rng = random.Random(f"{self.args.seed} {n}")
        kind, path, body = self.make(rng)
        body = {name: value for name, value in body.items() if value is not None}
        if self.models:
            # most requests in a row are for two models, which are loaded
            pair = [self.models[(n // 100 + i) % len(self.models)] for i in range(2)]
            body.setdefault("model", rng.choice(pair if n % 20 else self.models))
        fate = rng.random()
        try:
            if fate < 0.05:
                return self.malformed(path, rng)
            data = json.dumps(body).encode()
            if fate < 0.25:
                if path == "/v1/responses":
                    # nobody would delete it later
                    data = json.dumps({**body, "store": False, "background": False}).encode()
                return self.leave(path, data, rng)
            started = time.monotonic()
            for attempt in range(200):
                status, headers, answer = self.ask(path, data)
                self.count(f"{status}")
                if status not in (429, 503):
                    break
                if "retry-after" not in headers:
                    return self.fault(f"{status} without Retry-After: {path}")
                if time.monotonic() > self.end:
                    return None
                time.sleep(min(0.02 * (attempt + 1), 0.5))
            self.slowest = max(self.slowest, time.monotonic() - started)
            if kind == "continued" and status == 400 and b"previous_response_id" in answer:
                return self.count("forgotten")
            too_long = status == 400 and b"context_length_exceeded" in answer
            if status != 200 and not too_long:
                return self.fault(f"status {status}: {path} {data[:200]} -> {answer[:200]!r}")
            if status == 200 and kind in soak_others.KINDS:
                soak_others.check(self, kind, body, answer, rng)
            elif status == 200:
                self.check(kind, body, answer)
        except Hung:
            self.fault(f"hung: {path} {body}")
        except (AssertionError, ValueError, KeyError, IndexError, TypeError) as error:
            self.fault(f"{kind}: {error!r} from {json.dumps(body)[:300]}")
        except (OSError, http.client.HTTPException) as error:
            self.fault(f"connection: {error!r} at {path}")
        return None

    def malformed(self, path, rng):
        if path == "/tokenize":
            path = "/v1/completions"
        status, headers, answer = self.ask(path, rng.choice(NONSENSE))
        self.count(f"malformed {status}")
        well = 400 <= status < 500 and "error" in json.loads(answer)
        if not well and not (status == 503 and "retry-after" in headers):
            # some nonsense is sense on another route
            if status != 200 or path not in ("/v1/embeddings", "/v1/responses", "/completion"):
                self.fault(f"nonsense {status}: {path} {answer[:200]!r}")

    def leave(self, path, data, rng):
        self.count("left")
        with self.connect() as sock:
            self.send(sock, path, data)
            stage = rng.random()
            if stage < 0.3:
                return
            if stage < 0.6:
                time.sleep(rng.random() * 0.3)
                return
            sock.settimeout(PATIENCE)
            try:
                sock.recv(rng.choice([1, 300, 3000]))
            except TimeoutError as error:
                raise Hung(path) from error
            except ConnectionError:
                pass

    # --- all of them

    def client(self, upto):
        while time.monotonic() < self.end:
            with self.lock:
                n = self.next
                if n >= upto:
                    return
                self.next += 1
                if self.args.pid and n % 50 == 0:
                    self.peaks[-1] = max(self.peaks[-1], resident(self.args.pid))
            self.one(n)

    def storm(self, n):
        """So many clients ask at once, and leave together."""
        body = json.dumps({"prompt": "1+1=", "max_tokens": 400, "ignore_eos": True, "stream": True,
                           "model": self.models[0] if self.models else ""})
        socks = []
        try:
            for _ in range(n):
                sock = self.connect()
                self.send(sock, "/v1/completions", body.encode())
                socks.append(sock)
        except OSError as error:
            self.fault(f"storm: {error!r} after {len(socks)} connections")
        for sock in socks:
            sock.close()
        started = time.monotonic()
        self.wait_idle("after the storm")
        return time.monotonic() - started

    def caches(self):
        """The caches of the loaded models, and how many models are on their way in or out."""
        if not self.models:
            return [json.loads(self.get("/cache"))], 0
        listed = json.loads(self.get("/v1/models"))["data"]
        states = {model["id"]: model["status"]["value"] for model in listed}
        changing = sum(state in ("loading", "unloading") for state in states.values())
        caches = []
        for name in (name for name, state in states.items() if state == "loaded"):
            try:
                caches.append(json.loads(self.get(f"/cache?autoload=false&model={name}")))
            except OSError:
                changing += 1  # unloaded meanwhile
        return caches, changing

    def unload(self):
        """Unloads all of several models: which of them are loaded is chance."""
        for name in self.models:
            status, _, answer = self.ask("/models/unload", json.dumps({"model": name}).encode())
            if status != 200 and b"not loaded" not in answer:
                self.fault(f"unload: {status} {answer[:200]!r}")

    def wait_idle(self, when):
        end = time.monotonic() + 10
        while True:
            caches, changing = self.caches()
            requests = sum(len(cache["requests"]) for cache in caches)
            used = sum(cache["pages_total"] - cache["pages_free"] - cache["pages_cached"]
                       for cache in caches)
            if requests == 0 and used == 0 and changing == 0:
                break
            if time.monotonic() > end:
                self.fault(f"not idle {when}: {requests} requests, {used} pages, {changing} models "
                           "loading or unloading")
                break
            time.sleep(0.02)
        counts = metrics(self.get("/metrics").decode())
        for name in ("octavo_requests_running", "octavo_requests_waiting"):
            if counts.get(name, 0) != 0:
                self.fault(f"{name} {when}: {counts[name]}")
        pages = [counts.get(f"octavo_kv_pages_{kind}", 0) for kind in ("free", "cached", "total")]
        if pages[0] + pages[1] != pages[2]:
            self.fault(f"pages {when}: free + cached is not total: {pages}")
        return counts

    def phase(self, upto):
        """Requests up to this number, then a storm; answers what the idle server counts, and how
        long after the storm it was idle."""
        self.peaks.append(0)
        clients = [threading.Thread(target=self.client, args=(upto,), daemon=True)
                   for _ in range(self.args.clients)]
        for client in clients:
            client.start()
        for client in clients:
            client.join(max(0.0, self.end + PATIENCE - time.monotonic()))
        if any(client.is_alive() for client in clients):
            self.fault("hung: a client has not come to an end")
        if self.next < upto:
            self.fault(f"slow: {self.next} requests in {self.args.limit:.0f} s")
        counts = self.wait_idle(f"after {upto} requests")
        storm = self.storm(self.args.storm)
        if self.args.pid:
            self.unload()
            time.sleep(REST)
            self.rests.append(resident(self.args.pid))
        return counts, storm

    def run(self):
        listed = json.loads(self.get("/v1/models"))["data"]
        if self.args.all and len(listed) > 1:
            self.models = [model["id"] for model in listed]
        self.wait_idle("in the beginning")
        started = time.monotonic()
        counts, storm = {}, 0.0
        try:
            if self.args.pid:
                early = EARLY_ALL if self.args.all else EARLY
                self.phase(min(early, self.args.requests // 2))
            counts, storm = self.phase(self.args.requests)
            self.get("/health")
        except (OSError, http.client.HTTPException) as error:
            self.fault(f"gone: {error!r}")
        took = time.monotonic() - started
        growth = self.growth()
        if self.args.pid:
            before = cpu_time(self.args.pid)
            time.sleep(IDLE)
            busy = (cpu_time(self.args.pid) - before) / IDLE
            growth += f"; {busy:.3f} of a CPU when idle"
            if busy > BUSY:
                self.fault(f"busy: {busy:.3f} of a CPU when idle")
        print(f"{self.next} requests in {took:.0f} s, slowest {self.slowest:.1f} s; "
              + ", ".join(f"{what}: {n}" for what, n in sorted(self.counts.items())))
        print(f"{counts.get('octavo_num_preemptions_total', 0):.0f} preemptions, "
              f"{counts.get('octavo_prefix_cache_hits_total', 0):.0f} cached tokens, "
              f"{len(self.greedy)} greedy texts; {self.args.storm} clients left at once: "
              f"idle after {storm:.2f} s{growth}")
        print(f"{sum(self.faults.values())} faults {dict(self.faults) or ''}")
        return 1 if self.faults else 0

    def growth(self):
        """What became of the server's memory, in words."""
        if len(self.rests) < 2:
            return ""
        early, late = self.rests
        percent = 100 * (late - early) / self.peaks[0]
        if late - early >= GROWTH / 100 * self.peaks[0] + (SHAPE if self.models else 0):
            self.fault(f"memory: {early} KiB at first, {late} KiB in the end")
        return (f"; memory at rest {early} KiB -> {late} KiB ({percent:+.2f} % of "
                f"what it takes at work: {self.peaks[0]} KiB, later {self.peaks[1]} KiB)")


def resident(pid):
    """Memory of a process in KiB."""
    with open(f"/proc/{pid}/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def cpu_time(pid):
    """Seconds of CPU time that a process has used."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as line:
        fields = line.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def metrics(text):
    """Numbers of a Prometheus page, summed over labels."""
    sums = collections.Counter()
    for line in text.splitlines():
        if line and not line.startswith("#"):
            sums[line.split("{")[0].split(" ")[0]] += float(line.rsplit(" ", 1)[1])
    return sums


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("url", help="such as http://127.0.0.1:8080")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=48, help="at a time")
    parser.add_argument("--storm", type=int, default=500, help="clients that leave at once")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for all requests")
    parser.add_argument("--all", action="store_true", help="every interface, model and sampler")
    parser.add_argument("--pid", type=int, help="the server's, to watch its memory")
    sys.exit(Soak(parser.parse_args()).run())


if __name__ == "__main__":
    main()
