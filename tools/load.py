#!/usr/bin/env python3
"""Measures a server with several numbers of clients at a time, by OpenAI's streamed completions.

    octavo serve SmolLM2-135M-Instruct.Q4_1.gguf --parallel 64 -c 512 &
    tools/load.py http://127.0.0.1:8080 --clients 1,4,16,64 --csv load.csv

Each client sends one request after the other, with a prompt of its own that no cache has, and reads
the answer's stream to its end, which is always after as many tokens as were asked for. One row for
each number of clients: requests and generated tokens per second of all clients together, the time
to the first token, and the time from one token to the next of the same answer, both as medians and
as what 95 of 100 stay below. The first request of each client is not counted. Works with any server
of this interface that knows ignore_eos (llama-server, vLLM). Standard library only.
"""

import argparse
import csv
import http.client
import json
import random
import statistics
import sys
import threading
import time
from urllib.parse import urlsplit

WORDS = ("time year people way day man thing woman life child world school state family student "
         "group country problem hand part place case week company system program question work "
         "government number night point home water room mother area money story fact month lot "
         "right study book eye job word business issue side kind head house service friend").split()


class Load:
    """Requests of one number of clients."""

    def __init__(self, args, clients):
        self.args, self.clients = args, clients
        parts = urlsplit(args.url)
        self.address = parts.hostname, parts.port or 80
        self.path = parts.path.rstrip("/") + "/v1/completions"
        self.lock = threading.Lock()
        self.first, self.next = [], []  # seconds
        self.tokens = self.requests = 0
        self.errors = []
        self.barrier = threading.Barrier(clients + 1)

    def ask(self, rng):
        """Times of the pieces of an answer, since its request, and its number of tokens."""
        prompt = " ".join(rng.choices(WORDS, k=self.args.words))
        body = {"prompt": prompt, "max_tokens": self.args.tokens, "ignore_eos": True,
                "stream": True, "stream_options": {"include_usage": True}, "temperature": 0,
                "model": self.args.model}
        headers = {"Content-Type": "application/json"}
        if self.args.api_key:
            headers["Authorization"] = f"Bearer {self.args.api_key}"
        connection = http.client.HTTPConnection(*self.address, timeout=600)
        start = time.perf_counter()
        connection.request("POST", self.path, json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise OSError(f"{response.status} {response.read(300)!r}")
        times, tokens, is_done = [], None, False
        for line in response:
            if line.startswith(b"data: {"):
                piece = json.loads(line[6:])
                if piece.get("choices"):
                    times.append(time.perf_counter() - start)
                if piece.get("usage"):
                    tokens = piece["usage"]["completion_tokens"]
            is_done = is_done or line.startswith(b"data: [DONE]")
        connection.close()
        if not is_done or tokens != self.args.tokens:
            raise OSError(f"expected {self.args.tokens} tokens and an end, found {tokens}")
        return times, tokens

    def client(self, n):
        rng = random.Random(f"{self.args.seed} {self.clients} {n}")
        try:
            self.ask(rng)
        except OSError as error:
            self.errors.append(str(error))
        self.barrier.wait()
        for _ in range(self.args.requests):
            try:
                times, tokens = self.ask(rng)
            except OSError as error:
                self.errors.append(str(error))
                continue
            with self.lock:
                self.requests += 1
                self.tokens += tokens
                self.first.append(times[0])
                # pieces may have several tokens
                self.next.append((times[-1] - times[0]) / max(tokens - 1, 1))

    def run(self):
        """A row of the table."""
        threads = [threading.Thread(target=self.client, args=(n,)) for n in range(self.clients)]
        for thread in threads:
            thread.start()
        self.barrier.wait()
        start = time.perf_counter()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - start
        if self.errors:
            sys.exit(f"{len(self.errors)} requests failed, such as: {self.errors[0]}")
        return {
            "clients": self.clients,
            "requests": self.requests,
            "requests/s": round(self.requests / seconds, 2),
            "tokens/s": round(self.tokens / seconds, 1),
            "first ms": round(1e3 * statistics.median(self.first), 1),
            "first ms 95 %": round(1e3 * percentile(self.first, 95), 1),
            "next ms": round(1e3 * statistics.median(self.next), 2),
            "next ms 95 %": round(1e3 * percentile(self.next, 95), 2),
        }


def percentile(values, n):
    values = sorted(values)
    return values[min(len(values) * n // 100, len(values) - 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("url", help="such as http://127.0.0.1:8080")
    parser.add_argument("--clients", default="1,4,16,64", help="numbers of clients at a time")
    parser.add_argument("--requests", type=int, default=4, help="of each client that count")
    parser.add_argument("--words", type=int, default=100, help="of a prompt, a token or two each")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--model", default="", help="name in the requests")
    parser.add_argument("--api-key")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--csv", help="file to write the rows to as well")
    args = parser.parse_args()
    rows = []
    for clients in map(int, args.clients.split(",")):
        row = Load(args, clients).run()
        if not rows:
            print("| " + " | ".join(row) + " |")
            print("|" + "---:|" * len(row))
        rows.append(row)
        print("| " + " | ".join(map(str, row.values())) + " |", flush=True)
    if args.csv:
        with open(args.csv, "w", newline="", encoding="ascii") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
