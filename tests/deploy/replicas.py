#!/usr/bin/env python3
"""Replicas of `octavo serve` behind vLLM's router: killed, drained, restarted in turn, under load.

    replicas.py target/release/octavo vllm-router deploy/k8s

Starts two servers of the built-in model, with the arguments that deploy/k8s/deployment.yaml gives
them, and the router before them. CLIENTS clients ask without pause; every text must be the one that
a server alone says, whoever says it and whatever happens meanwhile.

- Ten times one of the servers is killed (SIGKILL) and started again: no answer may be lost.
- The same with streams: those that had begun at that server break off, and no others. If none did,
  this test would not see a loss, which is a fault too.
- A server is told to end (SIGTERM) while it has work: at once its /health says 503 and its /live
  200, who asks it directly is told to come back later, who was under way is answered, and it ends
  with code 0.
- All are restarted in turn, with and without streams: nothing may be lost.

What Kubernetes would ask them for, they must have: the paths of the probes, and the metric that the
number of replicas follows.

One line for each part, exit code 0 if all is well. About a minute on two cores. --no-retries tells
the router not to try another server, which must make the first part fail.
"""

import argparse
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import yaml
from prometheus_client.parser import text_string_to_metric_families

CLIENTS = 8
KILLS = 10
STREAM_KILLS = 3
PATIENCE = 30.0  # seconds for anything
PROMPTS = ["1+1=", "What is 2+2?", "one two three", "Grüße, 漢字"]
TOKENS = 200


class Fault(Exception):
    """Something is not as it should be."""


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def wait_for(what, is_so, patience=PATIENCE):
    end = time.monotonic() + patience
    while time.monotonic() < end:
        try:
            if is_so():
                return
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.02)
    raise Fault(f"in vain for {patience:.0f} s: {what}")


def ask(port, method, path, body=None):
    """Status, headers and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        headers = {"Content-Type": "application/json"} if body else {}
        connection.request(method, path, json.dumps(body) if body else None, headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def completion(prompt, tokens, stream=False):
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
            "stream": stream}


class Replica:
    """A server that can be ended and started again on its port."""

    def __init__(self, octavo, args):
        self.port = free_port()
        self.command = [octavo, "serve", *args, "-t", "1", f"--port={self.port}"]
        self.process = None

    def start(self):
        self.process = subprocess.Popen(self.command, stderr=subprocess.DEVNULL)
        wait_for(f"the server on port {self.port} begins", lambda: self.get("/health")[0] == 200)

    def get(self, path):
        status, _, body = ask(self.port, "GET", path)
        return status, body.decode()

    def numbers(self):
        """What it counts, read as a router of vLLM's reads it."""
        families = text_string_to_metric_families(self.get("/metrics")[1])
        return {sample.name: sample.value for family in families for sample in family.samples}

    def running(self):
        return self.numbers()["octavo_requests_running"]

    def has_worked(self):
        return self.numbers()["octavo_generation_tokens_total"] > 0

    def end(self, number):
        """Sends a signal and waits; answers the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


class Load:
    """Clients that ask the router without pause, for as long as this is entered."""

    def __init__(self, port, expected, kinds):
        self.port, self.expected, self.kinds = port, expected, kinds
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.good = 0
        self.slowest = 0.0
        self.lost = []  # what happened, and whether a stream had begun

    def __enter__(self):
        self.threads = [threading.Thread(target=self.client, args=(i,)) for i in range(CLIENTS)]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def client(self, number):
        n = number
        while not self.stop.is_set():
            started = time.monotonic()
            prompt, stream = PROMPTS[n % len(PROMPTS)], self.kinds[n % len(self.kinds)]
            said = []
            try:
                self.one(prompt, stream, said)
                loss = None if "".join(said) == self.expected[prompt] else "another text"
            except (OSError, http.client.HTTPException, ValueError, Fault) as error:
                loss = repr(error)
            with self.lock:
                self.slowest = max(self.slowest, time.monotonic() - started)
                if loss is None:
                    self.good += 1
                else:
                    self.lost.append((loss, stream and bool(said)))
            n += 1

    def one(self, prompt, stream, said):
        """Asks once; puts what comes into `said`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            body = json.dumps(completion(prompt, TOKENS, stream))
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", body, headers)
            response = connection.getresponse()
            if response.status != 200:
                raise Fault(f"{response.status}: {response.read()[:200]!r}")
            if not stream:
                said.append(json.load(response)["choices"][0]["text"])
                return
            said.append("")  # it has begun: nobody asks another server once the head was sent on
            for line in response:
                if line.strip() == b"data: [DONE]":
                    return
                if line.startswith(b"data: "):
                    piece = json.loads(line[6:])
                    if "error" in piece:
                        raise Fault(f"an error in the stream: {piece}")
                    said.extend(choice["text"] for choice in piece["choices"])
            raise Fault("a stream without its end")
        finally:
            connection.close()


class Site:
    """Two replicas and the router."""

    def __init__(self, args, folder):
        serving = container(args.manifests)["args"]
        own = ("--port", "--host")
        flags = [flag for flag in serving if flag.startswith("-") and not flag.startswith(own)]
        flags.append("--metrics-prefix=vllm")
        self.replicas = [Replica(args.octavo, flags) for _ in range(2)]
        self.port = free_port()
        self.router = None
        self.args = args
        self.log = os.path.join(folder, "router.log")

    def __enter__(self):
        for replica in self.replicas:
            replica.start()
        urls = [f"http://127.0.0.1:{replica.port}" for replica in self.replicas]
        command = [
            self.args.router, "--host", "127.0.0.1", "--port", str(self.port),
            "--worker-urls", *urls, "--policy", "round_robin",
            # that a server is gone, or there again, is seen within two seconds
            "--health-check-interval-secs", "1", "--health-failure-threshold", "1",
            "--cb-failure-threshold", "2", "--cb-timeout-duration-secs", "2",
            "--prometheus-port", str(free_port())]
        if self.args.no_retries:
            command.append("--disable-retries")
        with open(self.log, "wb") as log:
            self.router = subprocess.Popen(command, stdout=log, stderr=log)
        ready = lambda: ask(self.port, "POST", "/v1/completions", completion("a", 1))[0] == 200
        wait_for("the router answers", ready)
        return self

    def __exit__(self, *_):
        for process in [self.router, *(replica.process for replica in self.replicas)]:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    def expected(self):
        """What a server alone says."""
        def text(prompt):
            body = completion(prompt, TOKENS)
            status, _, answer = ask(self.replicas[0].port, "POST", "/v1/completions", body)
            if status != 200:
                raise Fault(f"a server alone: {status} {answer[:200]!r}")
            return json.loads(answer)["choices"][0]["text"]
        return {prompt: text(prompt) for prompt in PROMPTS}

    def kill(self, times):
        """Kills servers by turns, each while it has work; answers how many requests it had."""
        had = 0
        for turn in range(times):
            replica = self.replicas[turn % 2]
            wait_for("the router sends work to both", lambda: replica.running() >= 2)
            had += replica.running()
            replica.end(signal.SIGKILL)
            time.sleep(0.5)
            replica.start()
            wait_for("the router comes back", replica.has_worked)
        return had

    def restart_all(self):
        for replica in self.replicas:
            code = replica.end(signal.SIGTERM)
            if code != 0:
                raise Fault(f"SIGTERM: expected exit code 0, found {code}")
            replica.start()
            wait_for("the router comes back", replica.has_worked)


def container(folder):
    with open(os.path.join(folder, "deployment.yaml"), encoding="utf-8") as file:
        return yaml.safe_load(file)["spec"]["template"]["spec"]["containers"][0]


def report(what, load, more=""):
    """One line; a fault if anything was lost that may not be."""
    print(f"{what}: {load.good + len(load.lost)} requests, {len(load.lost)} lost, slowest "
          f"{load.slowest:.1f} s{more}", flush=True)
    if load.good == 0:
        raise Fault(f"{what}: nothing was answered")


def kills(site, expected):
    with Load(site.port, expected, [False]) as load:
        had = site.kill(KILLS)
    report(f"{KILLS} kills", load, f"; {had:.0f} were under way at those killed")
    if load.lost:
        raise Fault(f"expected no loss, found {load.lost[:5]}")


def stream_kills(site, expected):
    with Load(site.port, expected, [True]) as load:
        had = site.kill(STREAM_KILLS)
    report(f"{STREAM_KILLS} kills, streams", load, f"; {had:.0f} were under way at those killed")
    unbegun = [loss for loss, had_begun in load.lost if not had_begun]
    if unbegun:
        raise Fault(f"expected to lose streams that had begun alone, found {unbegun[:5]}")
    if not 0 < len(load.lost) <= STREAM_KILLS * CLIENTS:
        raise Fault(f"expected some streams to break off, found {len(load.lost)}")


def drain(site, expected):
    """A server is told to end while it has work of its own and of the router's."""
    replica = site.replicas[0]
    long = {"prompt": "1+1=", "max_tokens": 450, "ignore_eos": True, "temperature": 0, "n": 8}
    answers = []

    def ask_long():
        try:
            status, _, body = ask(replica.port, "POST", "/v1/completions", long)
            usage = json.loads(body).get("usage", {})
            answers.append((status, usage.get("completion_tokens")))
        except (OSError, http.client.HTTPException) as error:
            answers.append((repr(error), None))

    own = [threading.Thread(target=ask_long) for _ in range(2)]
    with Load(site.port, expected, [False, True]) as load:
        wait_for("the router sends work", lambda: replica.running() >= 2)
        for thread in own:
            thread.start()
        wait_for("it has the long requests", lambda: long_ones(replica) == 2)
        replica.process.send_signal(signal.SIGTERM)
        wait_for("/health fails", lambda: replica.get("/health")[0] == 503)
        states = {path: replica.get(path)[0] for path in ("/health", "/ready", "/live")}
        status, headers, _ = ask(replica.port, "POST", "/v1/completions", completion("a", 1))
        left = long_ones(replica)
        for thread in own:
            thread.join()
        code = replica.process.wait(PATIENCE)
        replica.start()
        wait_for("the router comes back", replica.has_worked)
    report("drain", load)
    found = {**states, "asked": status, "code": code, "left": left,
             "closes": headers["Connection"], "retry": bool(headers["Retry-After"])}
    expected = {"/health": 503, "/ready": 503, "/live": 200, "asked": 503, "code": 0, "left": 2,
              "closes": "close", "retry": True}
    if found != expected:
        raise Fault(f"drain: expected {expected}, found {found}")
    if answers != [(200, 450 * 8)] * 2 or load.lost:
        raise Fault(f"drain: expected two whole answers and no loss, found {answers} and "
                    f"{load.lost[:5]}")


def long_ones(replica):
    """How many requests for several texts a server has: nobody but `drain` sends such."""
    found = json.loads(replica.get("/cache")[1])["requests"]
    return len({one["id"] for one in found if one["choice"] > 0})


def rolling(site, expected):
    for kinds, name in (([False], "rolling restart"), ([True], "rolling restart, streams")):
        with Load(site.port, expected, kinds) as load:
            site.restart_all()
        report(name, load)
        if load.lost:
            raise Fault(f"{name}: expected no loss, found {load.lost[:5]}")


def asked_for(site, folder):
    """What the probes, the autoscaler and vLLM's router ask for is there."""
    replica = site.replicas[0]
    probes = {kind: container(folder)[kind]["httpGet"]["path"]
              for kind in ("startupProbe", "readinessProbe", "livenessProbe")}
    for kind, path in probes.items():
        status = replica.get(path)[0]
        if status != 200:
            raise Fault(f"{kind}: expected 200 at {path}, found {status}")
    with open(os.path.join(folder, "hpa.yaml"), encoding="utf-8") as file:
        metrics = yaml.safe_load(file)["spec"]["metrics"]
    names = [metric["pods"]["metric"]["name"] for metric in metrics]
    names += ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
              "vllm:gpu_cache_usage_perc", "vllm:gpu_prefix_cache_hit_rate",
              "vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total",
              "vllm:cache_config_info"]
    missing = sorted(set(names) - set(replica.numbers()))
    if missing:
        raise Fault(f"/metrics lacks {', '.join(missing)}")
    print(f"{len(probes)} probes and {len(names)} metrics are there", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("octavo")
    parser.add_argument("router")
    parser.add_argument("manifests", help="such as deploy/k8s")
    parser.add_argument("--no-retries", action="store_true", help="let the router give up at once")
    args = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Site(args, folder) as site:
        try:
            expected = site.expected()
            asked_for(site, args.manifests)
            for part in (kills, stream_kills, drain, rolling):
                part(site, expected)
        except (Fault, subprocess.TimeoutExpired, OSError) as error:
            with open(site.log, encoding="utf-8", errors="replace") as log:
                print(f"FAULT {error}\nthe router's last lines:\n{log.read()[-2000:]}")
            return 1
    print(f"all well, {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
