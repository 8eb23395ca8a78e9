#!/usr/bin/env python3
"""Sends a server what no honest client would, and says what it made of it.

    hostile_http.py http://127.0.0.1:8080 [--verbose]

Every attack must be answered within PATIENCE seconds by a 4xx (or 501, or 503 with Retry-After) with
an object {"error": {"message", "type", "param", "code"}}, or by the end of the connection where
nothing that was sent is HTTP. Never by a 500, by silence, or by the end of the process. While the
attacks run, a healthy client streams; afterwards no request may be left, and all pages of the cache
must be free or cached.

One line for each finding, a summary at the end; exit code 0 if all is well. Takes under a minute on
the built-in model. Standard library only.
"""

import argparse
import http.client
import json
import socket
import sys
import threading
import time
from urllib.parse import urlsplit

PATIENCE = 10.0  # seconds for an answer
LIMIT = 50.0  # seconds after which no further attack begins
SLOW = 12.0  # seconds after which a request that stays unfinished must have been dropped
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
        error = json.loads(body)["error"]
        return {"message", "type", "param", "code"} <= error.keys() and bool(error["message"])
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


# --- what is not HTTP, or barely


def broken_http(server, report):
    body = json.dumps({"messages": HELLO, "max_tokens": 2}).encode()
    post = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n".encode()
    chunked = post + b"Transfer-Encoding: chunked\r\n\r\n"
    length = post + b"Content-Length: "
    closing = {
        "HTTP/0.9": b"GET /\r\n\r\n",
        "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 9,
        "TLS hello": bytes.fromhex("16030100c8010000c403035b") + b"\0" * 190 + b"\r\n\r\n",
        "no spaces": b"GARBAGE\r\n\r\n",
        "NUL in the path": b"GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "NUL in a header": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
        "bad version": b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
        "header of 1 MiB": post + b"X: " + b"a" * (1 << 20) + b"\r\n\r\n",
        "10,000 headers": post + b"".join(b"X%d: 1\r\n" % i for i in range(10_000)) + b"\r\n",
        "path of 1 MiB": b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "length below 0": length + b"-1\r\n\r\n{}",
        "length of 30 digits": length + b"9" * 30 + b"\r\n\r\n{}",
        "length no number": length + b"ten\r\n\r\n{}",
        "two lengths": length + b"2\r\nContent-Length: 3\r\n\r\n{}",
        "chunk size no number": chunked + b"zz\r\n{}\r\n0\r\n\r\n",
        "chunk size huge": chunked + b"ffffffffffffffffff\r\n{}\r\n0\r\n\r\n",
        "chunk below 0": chunked + b"-2\r\n{}\r\n0\r\n\r\n",
        "chunk without end": chunked + b"2\r\n{}XX0\r\n\r\n",
        "chunk extension of 1 MiB": chunked + b"2;" + b"a" * (1 << 20) + b"\r\n{}\r\n0\r\n\r\n",
        "unknown transfer coding": post + b"Transfer-Encoding: gzip\r\n\r\n{}",
        "length and chunks": post + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
                             b"0\r\n\r\n",
    }
    for name, data in closing.items():
        status, _, answer = server.raw(data)
        # what the HTTP library refuses has no body; some of it may be taken as a request
        report.check(name, status in (0, 404) or 400 <= status < 500,
                     f"{status} {answer[:100]!r}")
    for method in ("PUT", "DELETE", "PATCH", "GET", "OPTIONS", "TRACE", "BREW"):
        data = head(method, CHAT, 0)
        report.refused(f"{method} {CHAT}", server.raw(data), [405, 403, 404])
    report.refused("POST /health", server.post("/health", {}), [405])
    report.refused("POST /nowhere", server.post("/nowhere", {}), [404])
    for path in ("/../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/%00", "/%ff", "/v1/models/%ff",
                 "/v1/models/..%2f..%2fetc%2fpasswd", "//", "/v1//models", "/v1/models/" + "a" * 9000):
        report.refused(f"GET {path[:40]}", server.get(path))
    pipelined = head("GET", "/health", None).replace(b"Connection: close\r\n", b"") * 200
    with server.connect() as sock:
        sock.sendall(pipelined + head("GET", "/ready", None))
        seen = b""
        try:
            while piece := sock.recv(65536):
                seen += piece
        except OSError:
            pass
        n = seen.count(b"HTTP/1.1 200")
        report.check("201 pipelined requests", n == 201, f"{n} answered")
    expect = head("POST", CHAT, len(body), ["Expect: 100-continue"]) + body
    status, _, _ = server.raw(expect)
    report.check("Expect: 100-continue", status in (100, 200), str(status))
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "a b", "[::1", ""):
        data = b"GET /v1/models HTTP/1.1\r\nHost: " + host.encode() + b"\r\nConnection: close\r\n\r\n"
        report.refused(f"Host: {host}", server.raw(data))
    for origin in ("http://evil.example", "null", "http://localhost.evil.example", "\u00e9"):
        data = head("GET", "/v1/models", None, [f"Origin: {origin}"])
        report.refused(f"Origin: {origin}", server.raw(data))


# --- bodies


def bodies(server, report):
    deep = 100_000
    quoted = json.dumps(HELLO)
    for name, body in {
        "no body": b"",
        "not JSON": b"hello",
        "a list": b"[]",
        "null": b"null",
        "a number": b"1",
        "a string": b'"a"',
        "NUL bytes": b"\0" * 100,
        "NUL in JSON": b'{"prompt": "a\0b"}',
        "invalid UTF-8": b'{"prompt": "\xff\xfe"}',
        "half a surrogate": b'{"prompt": "\\ud800"}',
        "lists 100,000 deep": b"[" * deep,
        "objects 100,000 deep": b'{"a":' * deep,
        "a prompt 100,000 deep": b'{"prompt": ' + b"[" * deep + b"]" * deep + b"}",
        "cut off": b'{"prompt": "a',
        "two values": b'{"prompt": "a"} {"prompt": "a"}',
        "NaN": b'{"prompt": "a", "temperature": NaN}',
        "Infinity": b'{"prompt": "a", "temperature": Infinity}',
        "1e400": b'{"prompt": "a", "temperature": 1e400}',
        "-1e400": b'{"prompt": "a", "logit_bias": {"1": -1e400}}',
        "a number of 100,000 digits": b'{"prompt": "a", "max_tokens": ' + b"9" * 100_000 + b"}",
        "max_tokens 2^64": b'{"prompt": "a", "max_tokens": 18446744073709551616}',
        "a BOM": b'\xef\xbb\xbf{"prompt": "a", "max_tokens": 1}',
        "9 MiB": b'{"prompt": "' + b"a" * (9 << 20) + b'"}',
    }.items():
        report.refused(f"body: {name}", server.post(TEXT, body))
    for name, body in {
        "duplicate keys": b'{"prompt": "a", "prompt": "b", "max_tokens": 1, "max_tokens": 2}',
        "-0": b'{"prompt": "a", "temperature": -0, "seed": -0, "max_tokens": 1}',
        "1e2 tokens": b'{"prompt": "a", "max_tokens": 1e1}',
        "7 MiB of a": b'{"prompt": "' + b"a" * (7 << 20) + b'"}',
        "7 MiB of blanks": b'{"prompt": "' + b" " * (7 << 20) + b'"}',
        "6 MiB of control tokens": b'{"prompt": "' + b"<|im_start|>" * (1 << 19) + b'"}',
        "4 MiB in messages": b'{"messages": [{"role": "user", "content": "' + b"a" * (4 << 20) + b'"}]}',
        "4 MiB of blanks to be ignored": b'{"x": "' + b" " * (4 << 20) + b'", "max_tokens": 1, "prompt": "a", "messages": ' + quoted.encode() + b"}",
    }.items():
        path = CHAT if b"messages" in body and b"prompt" not in body else TEXT
        report.answered(f"body: {name}", server.post(path, body))
    # a body of 100 MB, announced, in chunks, and until the connection ends
    piece = b"a" * (1 << 20)
    start = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n".encode()
    announced = [start + b"Content-Length: 104857600\r\n\r\n", *[piece] * 100]
    report.refused("100 MB announced", server.raw(announced), [413], may_close=True)
    chunk = b"100000\r\n" + piece + b"\r\n"
    chunks = [start + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 100, b"0\r\n\r\n"]
    report.refused("100 MB in chunks", server.raw(chunks), [413], may_close=True)
    bare = [start + b"\r\n", *[piece] * 100]
    report.refused("100 MB without a length", server.raw(bare), may_close=True)


# --- fields

# a text ends soon even where nothing limits it
SOON = [" ", "\n", ".", ",", "+", "=", *"0123aeinot"]
ODD = {
    "null": None, "true": True, "0": 0, "-1": -1, "1.5": 1.5, "2^63": 1 << 63, "2^64": 1 << 64,
    "-2^63": -(1 << 63), "1e308": 1e308, "text": "x", "empty": "", "[]": [], "[null]": [None],
    "[[]]": [[]], "[{}]": [{}], "{}": {}, "{a: {}}": {"a": {}}, "['']": [""], "NUL": "\0",
}
COMMON = """model stop seed temperature top_p top_k min_p n max_tokens stream stream_options logprobs
    presence_penalty frequency_penalty repeat_penalty repetition_penalty repeat_last_n logit_bias
    min_tokens ignore_eos stop_token_ids grammar json_schema response_format guided_regex cache_salt
    cache_prompt return_token_ids user metadata""".split()
FIELDS = {
    CHAT: ({"messages": HELLO, "max_tokens": 2}, [*COMMON, *"""messages top_logprobs tools tool_choice
        parallel_tool_calls max_completion_tokens chat_template_kwargs reasoning_effort
        reasoning_format continue_final_message add_generation_prompt""".split()]),
    TEXT: ({"prompt": "1+1=", "max_tokens": 2},
           [*COMMON, "prompt", "echo", "suffix", "best_of", "add_special_tokens"]),
    "/v1/embeddings": ({"input": "1+1="},
                       ["input", "encoding_format", "dimensions", "pooling", "model", "cache_salt"]),
    "/v1/responses": ({"input": "1+1=", "max_output_tokens": 16},
                      [*COMMON, *"""input instructions tools tool_choice max_output_tokens reasoning
        previous_response_id text store include parallel_tool_calls truncation""".split()]),
    "/completion": ({"prompt": "1+1=", "n_predict": 2}, [*COMMON, "prompt", "n_predict", "n_probs"]),
    "/infill": ({"input_prefix": "a", "input_suffix": "b", "n_predict": 2},
                ["input_prefix", "input_suffix", "prompt", "n_predict", "input_extra"]),
    "/tokenize": ({"content": "a"}, """content prompt messages add_special add_special_tokens
        parse_special with_pieces""".split()),
    "/detokenize": ({"tokens": [1]}, ["tokens"]),
    "/apply-template": ({"messages": HELLO}, """messages tools tool_choice chat_template_kwargs
        add_generation_prompt reasoning_effort""".split()),
}


def fields(server, report):
    """Every field of every route with values of every type: 200 or 4xx."""
    for path, (good, names) in FIELDS.items():
        for name in names:
            for label, value in ODD.items():
                body = {**good, "stop": SOON, name: value}
                report.answered(f"{path} {name} = {label}", server.post(path, body))


def message(**more):
    return {"messages": [{"role": "user", "content": "a", **more}], "max_tokens": 2}


def lists(server, report):
    """Lists that are empty or endless, numbers out of range, and messages of all kinds."""
    many = 10_000
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    wrong = {
        "no messages": (CHAT, {"messages": []}),
        "10,000 messages": (CHAT, {"messages": HELLO * many}),
        "10,000 tools": (CHAT, {"messages": HELLO, "tools": [tool] * many}),
        "10,000 stop strings": (CHAT, {"messages": HELLO, "stop": ["x"] * many}),
        "10,000 stop tokens": (TEXT, {"prompt": "a", "stop_token_ids": [1] * many}),
        "10,000 prompts": (TEXT, {"prompt": ["a"] * many}),
        "no prompts": (TEXT, {"prompt": []}),
        "10,000 embeddings": ("/v1/embeddings", {"input": ["a"] * many}),
        "10,000 biases": (TEXT, {"prompt": "a", "logit_bias": {str(i): 1 for i in range(many)}}),
        "an unknown role": (CHAT, message(role="king")),
        "an image": (CHAT, message(content=[{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}])),
        "a part of no type": (CHAT, message(content=[{}])),
        "10,000 parts": (CHAT, message(content=[{"type": "text", "text": "a"}] * many)),
        "content null": (CHAT, message(content=None)),
        "content a number": (CHAT, message(content=1)),
        "token ids beyond the vocabulary": (TEXT, {"prompt": [1, 1 << 31]}),
        "token ids below 0": (TEXT, {"prompt": [-1]}),
        "n = 1e9": (CHAT, {**message(), "n": 1_000_000_000}),
        "logprobs = 1e9": (TEXT, {"prompt": "a", "logprobs": 1_000_000_000}),
        "top_logprobs = 1e9": (CHAT, {**message(), "logprobs": True, "top_logprobs": 1_000_000_000}),
        "temperature = 3": (CHAT, {**message(), "temperature": 3}),
        "tool_choice of no tool": (CHAT, {**message(), "tools": [tool], "tool_choice": {
            "type": "function", "function": {"name": "g"}}}),
        "required without tools": (CHAT, {**message(), "tool_choice": "required"}),
        "a tool without a name": (CHAT, {**message(), "tools": [{"type": "function", "function": {}}]}),
        "an unknown model": (CHAT, {**message(), "model": "gpt-99"}),
        "two rules": (CHAT, {**message(), "json_schema": {}, "guided_regex": "a"}),
        "a prompt beyond the context": (TEXT, {"prompt": [1] * 200_000}),
        "previous_response_id": ("/v1/responses", {"input": "a", "previous_response_id": "resp_1"}),
    }
    for name, (path, body) in wrong.items():
        report.refused(name, server.post(path, body))
    fine = {
        "content of no parts": (CHAT, message(content=[])),
        "2,000 messages": (CHAT, {"messages": HELLO * 2000, "max_tokens": 1}),
        "64 prompts": (TEXT, {"prompt": ["a"] * 64, "max_tokens": 1}),
        "64 prompts of 4 texts": (TEXT, {"prompt": ["a"] * 64, "max_tokens": 1, "n": 4}),
        "n = 16": (CHAT, {**message(), "n": 16}),
        "tool call of odd arguments": (CHAT, {"max_tokens": 1, "messages": [*HELLO, {
            "role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function",
            "function": {"name": "f", "arguments": "{" * 10_000}}]}]}),
        "template syntax": (CHAT, message(content="{{ 1/0 }}{% for x in range(10**9) %}{% endfor %}")),
        "content of NUL": (CHAT, message(content="\0" * 100)),
        "odd kwargs": (CHAT, {**message(), "chat_template_kwargs": {
            "messages": 1, "add_generation_prompt": [], "x": {"y": [None] * 1000}}}),
    }
    for name, (path, body) in fine.items():
        report.answered(name, server.post(path, body))


# --- schemas and grammars made to explode


def continued(server, report):
    """A last message that is continued is what the prompt ends with, whatever it says."""
    def render(text):
        messages = [*HELLO, {"role": "assistant", "content": text}]
        body = {"messages": messages, "continue_final_message": True}
        status, _, answer = server.post("/apply-template", body)
        return status, json.loads(answer).get("prompt", "")

    status, marked = render("QQZZ")
    report.check("continue a text", status == 400 or marked.endswith("QQZZ"), repr(marked[-40:]))
    for text in ("The answer is", "e", "im", "|", ""):
        status, prompt = render(text)
        expected = marked.removesuffix("QQZZ") + text
        report.check(f"continue {text!r}", status == 400 or prompt.strip() == expected.strip(),
                     repr(prompt[-40:]))


def rules(server, report):
    def nest(n, kind):
        schema = {"type": "string", "maxLength": 1}
        for _ in range(n):
            schema = {kind: [schema, schema]} if n < 15 else {
                "type": "object", "properties": {"a": schema}, "required": ["a"]}
        return schema

    schemas = {
        "$ref to itself": {"$ref": "#"},
        "$ref in a circle": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
                             "$ref": "#/$defs/a"},
        "$ref to nothing": {"$ref": "#/$defs/none"},
        "$ref to a file": {"$ref": "file:///etc/passwd"},
        "$ref to a site": {"$ref": "http://127.0.0.1:1/x"},
        "anyOf, 2^12 ways": nest(12, "anyOf"),
        "allOf, 2^12 ways": nest(12, "allOf"),
        "oneOf, 2^12 ways": nest(12, "oneOf"),
        "100 levels": nest(100, ""),
        "pattern (a*)*": {"type": "string", "pattern": "^((((a*)*)*)*)*b$"},
        "pattern {1,100000}": {"type": "string", "pattern": "^(a|b|ab){1,100000}$"},
        "pattern {1000}{1000}": {"type": "string", "pattern": "^((a{1000}){1000}){1000}$"},
        "pattern .*.*.*": {"type": "string", "pattern": "(.*a){30}"},
        "minLength 1e9": {"type": "string", "minLength": 10**9},
        "maxLength 1e9": {"type": "string", "maxLength": 10**9},
        "maxItems 1e9": {"type": "array", "items": {"type": "integer"}, "maxItems": 10**9},
        "minItems 1e9": {"type": "array", "items": {"type": "integer"}, "minItems": 10**9},
        "multipleOf 1e-300": {"type": "number", "multipleOf": 1e-300},
        "maximum 1e300": {"type": "integer", "minimum": -1e300, "maximum": 1e300},
        "minimum above maximum": {"type": "integer", "minimum": 2, "maximum": 1},
        "enum []": {"enum": []},
        "false": {"not": {}},
        "enum of 10,000": {"enum": [f"value {i}" for i in range(10_000)]},
        "5,000 properties": {"type": "object", "properties": {
            f"p{i}": {"type": "integer"} for i in range(5000)}},
        "8,000 properties": {"type": "object", "properties": {
            f"p{i}": {"type": "integer"} for i in range(8000)}},
        "a chain of 4,000 $refs": {"$ref": "#/$defs/d0", "$defs": {"d4000": {"type": "integer"}} | {
            f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(4000)}},
        "3,000 patternProperties": {"type": "object", "patternProperties": {
            f"^x{i}$": {"type": "integer"} for i in range(3000)}},
        "unknown type": {"type": "potato"},
        "1 MiB": {"description": "a" * (1 << 20)},
    }
    for name, schema in schemas.items():
        body = {**message(), "response_format": {"type": "json_schema", "json_schema": {
            "name": "x", "schema": schema}}}
        report.answered(f"schema: {name}", server.post(CHAT, body))
    many = {"type": "object", "required": [f"p{i}" for i in range(900)],
            "properties": {f"p{i}": {"type": "integer"} for i in range(900)}}
    body = {"prompt": ["a"] * 64, "max_tokens": 1, "json_schema": many}
    report.answered("one schema for 64 prompts", server.post(TEXT, body))
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": many}}
             for i in range(128)]
    body = {**message(), "tools": tools, "tool_choice": "required"}
    report.answered("128 tools of 900 parameters", server.post(CHAT, body))
    regexes = {"(a*)*b": "(((a*)*)*)*b", "{1,100000}": "[ab]{1,100000}c", "(.*a){40}": "(.*a){40}",
               "unclosed": "((((", "nested 5,000 deep": "(" * 5000 + "a" + ")" * 5000,
               "look-around": "(?=a)(?<!b)c", "back reference": r"(a)\1"}
    for name, regex in regexes.items():
        report.answered(f"regex: {name}", server.post(CHAT, {**message(), "guided_regex": regex}))
    grammars = {
        "left recursion": 'start: start "a" | "b"', "cycle": "start: x\nx: y\ny: x",
        "ambiguity": 'start: s\ns: s s | s s s | "a" | ""', "undefined rule": "start: nothing",
        "not a grammar": "(((", "256 KiB": "start: " + " | ".join(f'"x{i}"' for i in range(24_000)),
        "beyond 256 KiB": "start: " + " | ".join(f'"x{i}"' for i in range(40_000)),
        "5,000 groups": "start: " + "(" * 5000 + '"a"' + ")" * 5000,
        "a chain of 12,000 rules": "start: r0\n" + "".join(
            f"r{i}: r{i + 1}\n" for i in range(12_000)) + 'r12000: "a"',
        "a chain of 12,000 terminals": "start: T0\n" + "".join(
            f"T{i}: T{i + 1}\n" for i in range(12_000)) + 'T12000: "a"',
        "empty terminal": 'start: A\nA: ""', "huge repeat": 'start: "a"{1,1000000}',
    }
    for name, grammar in grammars.items():
        report.answered(f"grammar: {name}", server.post(CHAT, {**message(), "grammar": grammar}))


# --- clients that take their time, or leave


def slow(server, report):
    """Requests that never end: after SLOW seconds the server must have dropped the slow heads."""
    def linger(name, begin):
        with server.connect(SLOW + 3) as sock:
            started = time.monotonic()
            sock.sendall(begin)
            sock.settimeout(0.5)
            while time.monotonic() - started < SLOW + 2:
                try:
                    if not sock.recv(4096):
                        break
                except TimeoutError:
                    try:
                        sock.sendall(b"a")  # one byte now and then
                    except OSError:
                        break
                except OSError:
                    break
            took = time.monotonic() - started
            report.check(name, took <= SLOW, f"dropped after {took:.1f} s")

    starts = {"a head byte by byte": b"GET /health HTTP/1.1\r\nX: ", "no byte at all": b"",
              "half a request line": b"GE"}
    threads = [threading.Thread(target=linger, args=pair) for pair in starts.items()]
    for thread in threads:
        thread.start()
    return threads


def crowd(server, report):
    """600 idle connections: the 601st is still answered."""
    idle = []
    try:
        for _ in range(600):
            idle.append(server.connect())
        status, _, body = server.post(CHAT, {"messages": HELLO, "max_tokens": 2})
        report.check("beside 600 idle connections", status == 200, f"{status} {body[:100]!r}")
    except OSError as error:
        report.check("600 idle connections", False, repr(error))
    finally:
        for sock in idle:
            sock.close()


def leavers(server, report):
    """Clients that go at every stage, and some that never read what they asked for."""
    body = json.dumps({"prompt": "1+1=" * 30, "max_tokens": 300, "ignore_eos": True, "n": 2,
                       "stream": True}).encode()
    request = head("POST", TEXT, len(body)) + body
    deaf = []
    for i in range(120):
        sock = server.connect()
        if i % 4 == 0:
            sock.sendall(request[: len(request) // 2])
        else:
            sock.sendall(request)
        if i % 4 == 2:
            sock.recv(1)
        if i % 12 == 3:
            deaf.append(sock)
        else:
            sock.close()
    time.sleep(0.3)
    for sock in deaf:
        sock.close()
    wait_idle(server, report, "after 120 clients left")


def wait_idle(server, report, when, patience=PATIENCE):
    """No request is left, and no page of the cache is lost, in both places that say so.

    The healthy client goes on asking, also between the two questions: only one moment at which
    both say so is waited for.
    """
    end = time.monotonic() + patience
    while True:
        slots = server.json("/slots")
        used = slots["pages_total"] - slots["pages_free"] - slots["pages_cached"]
        _, _, text = server.get("/metrics")
        counts = {line.split(b"{")[0].decode(): float(line.rsplit(b" ", 1)[1])
                  for line in text.splitlines()
                  if line.startswith((b"octavo_requests_running", b"octavo_requests_waiting"))}
        is_well = not slots["requests"] and used == 0 and not any(counts.values())
        if is_well or time.monotonic() > end:
            break
        time.sleep(0.05)
    report.check(f"idle {when}", is_well, f"{len(slots['requests'])} requests, {used} pages, {counts}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("url", help="such as http://127.0.0.1:8080")
    parser.add_argument("--verbose", action="store_true", help="print what went well, too")
    parser.add_argument("--only", help="comma-separated: " + ", ".join(ATTACKS))
    args = parser.parse_args()
    server, report = Server(args.url), Report(args.verbose)
    started = time.monotonic()
    chosen = args.only.split(",") if args.only else list(ATTACKS)
    healthy = Healthy(server)
    healthy.start()
    lingering = slow(server, report)
    for name in chosen:
        began = time.monotonic()
        healthy.gap = 0.0
        try:
            ATTACKS[name](server, report)
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
    print(f"{report.tried} attacks, {report.faults} faults, {healthy.texts} healthy texts, {took:.0f} s")
    return 1 if report.faults else 0


ATTACKS = {"broken_http": broken_http, "bodies": bodies, "fields": fields, "lists": lists,
           "continued": continued, "crowd": crowd, "leavers": leavers, "rules": rules}

if __name__ == "__main__":
    sys.exit(main())
