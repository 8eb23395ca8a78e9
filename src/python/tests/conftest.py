"""What the tests share: the built-in model, and the command line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import octavo

# A shell starts programs in the background with SIGINT ignored, and their children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def run(*arguments, **options):
    """Runs the command line: the program that OCTAVO names, or else the package's."""
    program = os.environ.get("OCTAVO") or shutil.which("octavo", path=Path(sys.executable).parent)
    command = [program, "-q", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, timeout=300, **options).stdout


@pytest.fixture(scope="session")
def command():
    """Function that runs the command line and returns what it prints."""
    return run


@pytest.fixture(scope="session")
def command_json():
    """Function that runs the command line and returns the JSON that it prints."""
    return lambda *arguments, **options: json.loads(run(*arguments, **options))


@pytest.fixture(scope="session")
def model():
    """The built-in model, with the command line's defaults."""
    with octavo.Model() as model:
        yield model


@pytest.fixture(scope="session")
def model_file(tmp_path_factory):
    """The built-in model as a file."""
    source = octavo.gguf.open()
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    keys = {key: source.keys[key] for key in source.keys}
    octavo.gguf.write(path, keys, source.tensors, types=source.types)
    return path


@pytest.fixture(scope="session")
def long_file(tmp_path_factory):
    """The built-in model with a longer context."""
    source = octavo.gguf.open()
    path = tmp_path_factory.mktemp("models") / "long.gguf"
    keys = {key: source.keys[key] for key in source.keys} | {"qwen3.context_length": 65536}
    octavo.gguf.write(path, keys, source.tensors, types=source.types)
    return path


@pytest.fixture(scope="session")
def long_model(long_file):
    """The built-in model with a longer context, loaded."""
    with octavo.Model(long_file) as model:
        yield model


def shared(*parts):
    """Returns a path in the folder of large fixtures; skips the test where there is none."""
    folder = Path(os.environ.get("OCTAVO_SHARED", "../shared"))
    path = folder.joinpath(*parts)
    if not path.exists():
        if os.environ.get("OCTAVO_REQUIRE_SHARED"):
            raise FileNotFoundError(path)
        pytest.skip(f"skipped: {path} is not there")
    return path
