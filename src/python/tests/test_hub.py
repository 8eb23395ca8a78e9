"""Models by name: fetched from a hub on this machine, and then from the cache."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

COMMIT = "c" * 40
CODE = """
import octavo, sys
with octavo.Model("hf:me/tiny:Q4_K_M", offline=len(sys.argv) > 1) as model:
    print(model.generate("1+1=", max_tokens=1).text, model.name)
print(len(octavo.gguf.open("hf:me/tiny", offline=True).tensors) > 10)
"""


@pytest.fixture
def hub(model_file):
    """Address of a hub with one repository, and the paths that it was asked for."""
    data, asked = model_file.read_bytes(), []
    digest = hashlib.sha256(data).hexdigest()
    listing = [{"type": "file", "path": "tiny-Q4_K_M.gguf", "size": len(data),
                "lfs": {"oid": digest, "size": len(data)}}]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            if "/revision/" in self.path:
                body = json.dumps({"sha": COMMIT}).encode()
            elif "/tree/" in self.path:
                body = json.dumps(listing).encode()
            else:
                body = data
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"{digest}"')
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()


def test_a_model_by_name_is_fetched_once(hub, tmp_path):
    address, asked = hub
    environment = {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path),
                   "NO_PROXY": "127.0.0.1"}
    environment.pop("HF_HUB_CACHE", None)

    def run(*arguments):
        found = subprocess.run([sys.executable, "-c", CODE, *arguments], env=environment,
                               capture_output=True, text=True, timeout=120)
        assert found.returncode == 0, found.stderr
        return found.stdout.split()

    assert run() == ["2", "hf:me/tiny:Q4_K_M", "True"]
    assert any("resolve" in path for path in asked)
    asked.clear()
    assert run("offline") == ["2", "hf:me/tiny:Q4_K_M", "True"]
    assert asked == []
