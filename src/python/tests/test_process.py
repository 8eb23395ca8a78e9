"""Processes: Ctrl-C, forks, the command, errors, the import."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time

import pytest

import octavo


def python(code, **options):
    """Runs a program of Python."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


@pytest.mark.parametrize("call", [
    "m.generate('Once', ignore_eos=True)",
    "list(m.stream('Once', ignore_eos=True))",
    "m.batch(['Once', 'Twice'] * 20, ignore_eos=True)",
    "m.logits(list(range(32)) * 1000)",
    "octavo.perplexity(m, 'Once upon a time ' * 20000, chunk=64)",
])
def test_ctrl_c_ends_a_call(call, long_file):
    code = f"""
import octavo, os, signal, threading, time
m = octavo.Model({str(long_file)!r})
started = []
def press():
    time.sleep(0.5)
    started.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=press).start()
try:
    {call}
    print("it ended by itself")
except KeyboardInterrupt:
    print("ended", time.monotonic() - started[0] < 5)
print(m.generate("1+1=", max_tokens=1).text)
"""
    found = python(code)
    assert found.stdout.split() == ["ended", "True", "2"], found.stdout + found.stderr


def test_other_threads_run_meanwhile(long_file):
    code = f"""
import octavo, threading
m = octavo.Model({str(long_file)!r})
ticks = 0
done = threading.Event()
def count():
    global ticks
    while not done.wait(0.001):
        ticks += 1
thread = threading.Thread(target=count)
thread.start()
m.logits(list(range(32)) * 100)
done.set()
thread.join()
print(ticks > 20, ticks)
"""
    assert python(code).stdout.split()[0] == "True"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_process_gets_a_clear_error():
    code = """
import octavo, os
m = octavo.Model()
stream = m.stream("Once", ignore_eos=True)
next(stream)
pid = os.fork()
if pid == 0:
    try:
        m.generate("1+1=")
    except octavo.ForkedError as error:
        assert error.loaded_in == os.getppid() and error.pid == os.getpid(), vars(error)
        # a model of its own works
        own = octavo.Model(threads=1)
        assert own.generate("1+1=", max_tokens=1).text == "2"
        del stream, m, own
        os._exit(7)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(m.generate("1+1=", max_tokens=1).text)
"""
    found = python(code)
    assert found.stdout.split() == ["7", "2"], found.stderr


def square(_):
    """Work of a child process that loads a model of its own."""
    with octavo.Model(threads=1) as model:
        return model.generate("1+1=", max_tokens=1).text


def test_workers_that_are_spawned(model):
    assert model.generate("1+1=", max_tokens=1).text == "2"
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(square, [0]) == ["2"]


def test_a_closed_model(model_file):
    model = octavo.Model(model_file)
    stream = model.stream("Once", max_tokens=4)
    model.close()
    model.close()
    assert len(list(stream)) > 0
    with pytest.raises(octavo.ClosedError):
        model.generate("1+1=")


def test_errors_have_fields(model, tmp_path):
    with pytest.raises(octavo.ModelError) as caught:
        octavo.Model(tmp_path / "nothing.gguf")
    assert caught.value.file == str(tmp_path / "nothing.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF broken")
    with pytest.raises(octavo.ModelError, match=r"broken\.gguf"):
        octavo.Model(tmp_path / "broken.gguf")
    with pytest.raises(octavo.TokenError) as caught:
        model.logits([1, 10**6])
    assert (caught.value.id, caught.value.n_vocab) == (10**6, model.n_vocab)
    with octavo.Model(ctx=16) as small, pytest.raises(octavo.ContextError) as caught:
        small.generate([1] * 40)
    assert (caught.value.tokens, caught.value.n_ctx) == (40, 16)
    with pytest.raises(octavo.ArgumentError) as caught:
        model.generate("1", temperature=-1.0)
    assert caught.value.name == "temperature" and caught.value.got == "-1"
    for wrong in ({"device": "gpu"}, {"isa": "sse"}, {"kv_type": "q5_9"}, {"threads": 0}):
        with pytest.raises(octavo.ArgumentError) as caught:
            octavo.Model(**wrong)
        assert caught.value.name == next(iter(wrong))
    with pytest.raises(TypeError, match="max_tokns"):
        model.generate("1", max_tokns=3)
    with pytest.raises(octavo.HubError):
        octavo.Model("hf:nobody/nothing", offline=True)
    assert "\n" not in str(caught.value)
    with pytest.raises(TypeError):
        pickle.dumps(model)


def test_the_command_in_the_package(command, command_json):
    python_m = [sys.executable, "-m", "octavo"]
    shown = subprocess.run([*python_m, "--version"], check=True, capture_output=True, text=True)
    assert shown.stdout.split() == ["octavo", octavo.__version__]
    wrong = subprocess.run([*python_m, "run", "--nonsense"], capture_output=True)
    assert wrong.returncode == 2
    missing = subprocess.run([*python_m, "run", "nothing.gguf", "-p", "a"], capture_output=True)
    assert missing.returncode == 1 and missing.stderr.startswith(b"octavo: error: nothing.gguf")
    text = subprocess.run([*python_m, "run", "-p", "1+1=", "-n", "8"], check=True,
                          capture_output=True).stdout
    assert text == command("run", "-p", "1+1=", "-n", 8)


def test_ctrl_c_ends_the_command(long_file):
    command = [sys.executable, "-m", "octavo", "run", long_file, "-p", "Once", "--ignore-eos"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130


def test_the_import_is_fast():
    code = "import time; t = time.perf_counter(); import octavo; print(time.perf_counter() - t)"
    seconds = min(float(python(code).stdout) for _ in range(10))
    assert seconds < 0.05, seconds
    loaded = python("import octavo, sys; print('numpy' in sys.modules)").stdout
    assert loaded.strip() == "False"


def test_names_and_pages(model):
    for name in octavo.__all__:
        if name != "lm_eval":
            assert getattr(octavo, name).__doc__ or name == "__version__", name
    assert set(octavo.__all__) == set(dir(octavo))
    page = model._repr_html_()
    assert "qwen3" in page and "<table>" in page
    for name in ("generate", "stream", "batch", "logits", "taps", "embed", "tokenize", "chat"):
        assert len(getattr(octavo.Model, name).__doc__) > 60
