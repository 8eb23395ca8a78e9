#!/usr/bin/env python3
"""Replicas under Ray Serve (deploy/ray/serve.py): killed and deployed again, under load.

    pip install 'ray[serve]==2.60.0'
    ray_serve.py target/release/octavo

As tests/deploy/replicas.py does it with vLLM's router: CLIENTS clients ask without pause, and every
text must be the one that the first answer was. Actors are killed, then servers under actors; then
all is deployed again. No answer without a stream may be lost, nor a stream that had not begun, nor
anything when it is deployed again. Run by hand: Ray takes 500 MB, and a minute to start.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import signal
import sys
import time

from replicas import PROMPTS, TOKENS, Fault, Load, ask, completion, free_port, report, wait_for

MARK = f"ray-{os.getpid()}"  # tells our servers from others
KILLS = 4
PATIENCE = 120.0  # seconds for Serve to start a replica


def servers():
    """Processes of our servers, each with its actor's."""
    found = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            parent = (folder / "stat").read_text().rsplit(")", 1)[1].split()[1]
        except OSError:
            continue  # it has ended meanwhile
        if f"--alias={MARK}".encode() in words and b"setpriv" not in words[0]:
            found[int(folder.name)] = int(parent)
    return found


def kill(port, times, is_actor):
    """Kills actors, or the servers under them, and waits until Serve has replaced each."""
    for _ in range(times):
        server, actor = sorted(servers().items())[0]
        os.kill(actor if is_actor else server, signal.SIGKILL)
        replaced = lambda: len(servers()) == 2 and server not in servers()
        wait_for("Serve starts another replica", replaced, PATIENCE)
        wait_for("it answers", lambda: ask(port, "GET", "/health")[0] == 200, PATIENCE)
        time.sleep(3)


def check(what, load, is_stream):
    report(what, load)
    unbegun = [loss for loss, had_begun in load.lost if not had_begun]
    if unbegun:
        raise Fault(f"{what}: expected no loss but of streams that had begun, found {unbegun[:5]}")
    if is_stream and not load.lost:
        raise Fault(f"{what}: expected some streams to break off: nothing is streamed")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("octavo")
    args = parser.parse_args()
    os.environ["OCTAVO"] = os.path.abspath(args.octavo)
    os.environ["OCTAVO_ARGS"] = f"-t 1 --alias={MARK}"
    import ray
    from ray import serve

    source = pathlib.Path(__file__).resolve().parents[2] / "deploy/ray/serve.py"
    spec = importlib.util.spec_from_file_location("octavo_ray", source)
    module = importlib.util.module_from_spec(spec)
    sys.modules["octavo_ray"] = module
    spec.loader.exec_module(module)
    ray.cloudpickle.register_pickle_by_value(module)

    started = time.monotonic()
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    try:
        serve.run(module.app, name="octavo", route_prefix="/")
        print(f"up in {time.monotonic() - started:.0f} s", flush=True)
        expected = {}
        for prompt in PROMPTS:
            answer = ask(port, "POST", "/v1/completions", completion(prompt, TOKENS))
            expected[prompt] = json.loads(answer[2])["choices"][0]["text"]
        for is_actor, what in ((True, "actors"), (False, "servers")):
            for kinds, how in (([False], "whole answers"), ([True], "streams")):
                with Load(port, expected, kinds) as load:
                    kill(port, KILLS, is_actor)
                check(f"{KILLS} kills of {what}, {how}", load, kinds[0])
        before = set(servers())
        with Load(port, expected, [False, True]) as load:
            # anything that differs makes Serve start new ones
            again = module.Replica.options(ray_actor_options={"num_cpus": 0.9})
            serve.run(module.Front.bind(again.bind()), name="octavo", route_prefix="/")
            wait_for("the old servers end", lambda: not before & set(servers()), PATIENCE)
        report("deployed again", load)
        if load.lost:
            raise Fault(f"deployed again: expected no loss, found {load.lost[:5]}")
    except Fault as fault:
        print(f"FAULT {fault}")
        return 1
    finally:
        serve.shutdown()
        ray.shutdown()
    wait_for("no server stays", lambda: not servers())
    print(f"all well, {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
