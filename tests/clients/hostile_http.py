#!/usr/bin/env python3
"""Sends a server bytes and connections that no honest client would, and says what it made of them.

    hostile_http.py http://127.0.0.1:8080 [--verbose]

What is not HTTP or barely, bodies that are not JSON or too large, clients that take their time,
come in crowds or leave. What must come of it is at the head of hostile.py.
"""

import json
import sys
import threading
import time

from hostile import CHAT, HELLO, TEXT, head, run, wait_idle

SLOW = 12.0  # seconds after which a request that stays unfinished must have been dropped


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
                 "/v1/models/..%2f..%2fetc%2fpasswd", "//", "/v1//models",
                 "/v1/models/" + "a" * 9000):
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
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "a b", "[::1",
                 ""):
        data = f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        report.refused(f"Host: {host}", server.raw(data.encode()))
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
        "half a surrogate": b'{"prompt": "\\ud800", "max_tokens": 1}',
        "-0": b'{"prompt": "a", "temperature": -0, "seed": -0, "max_tokens": 1}',
        "1e2 tokens": b'{"prompt": "a", "max_tokens": 1e1}',
        "7 MiB of a": b'{"prompt": "' + b"a" * (7 << 20) + b'"}',
        "7 MiB of blanks": b'{"prompt": "' + b" " * (7 << 20) + b'"}',
        "6 MiB of control tokens": b'{"prompt": "' + b"<|im_start|>" * (1 << 19) + b'"}',
        "4 MiB in messages":
            b'{"messages": [{"role": "user", "content": "' + b"a" * (4 << 20) + b'"}]}',
        "4 MiB of blanks to be ignored":
            b'{"x": "' + b" " * (4 << 20) + b'", "max_tokens": 1, "prompt": "a", "messages": '
            + quoted.encode() + b"}",
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


ATTACKS = {"broken_http": broken_http, "bodies": bodies, "crowd": crowd, "leavers": leavers}

if __name__ == "__main__":
    sys.exit(run(__doc__, ATTACKS, beside=slow))
