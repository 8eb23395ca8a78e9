"""A coding agent's conversation against a server, by the official anthropic package.

    agent.py http://127.0.0.1:8080 [--model NAME]

Sends the 20 requests of a conversation with 23 tools (agent.json) as Claude Code sends them: each
has the whole conversation so far, a line about billing at the head that is another each time, and a
mark for the cache that moves on. Of each prompt only what is new may be computed. Prints a line for
each request, and fails if more is computed.
"""

import argparse
import hashlib
import json
import pathlib
import time

from anthropic import Anthropic

# positions of a page of the KV cache: the last page of a prompt is computed again
PAGE = 16
# tokens that begin an answer, which are no part of the next prompt's beginning
HEAD = 8


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--model", default="octavo")
    return parser.parse_args()


def system(recorded, turn):
    """Returns the system prompt's blocks, of which the first is another in each request."""
    digits = hashlib.sha256(str(turn).encode()).hexdigest()
    billing = (f"x-anthropic-billing-header: cc_version=2.1.101.{digits[:3]}; "
               f"cc_entrypoint=cli; cch={digits[:5]};")
    prompt = {"type": "text", "text": recorded["system"], "cache_control": {"type": "ephemeral"}}
    return [{"type": "text", "text": billing}, prompt]


def messages(recorded, turn):
    """Returns the conversation up to a turn, with the mark for the cache on its last block."""
    conversation = [{"role": "user", "content": [{"type": "text", "text": recorded["task"]}]}]
    for number, step in enumerate(recorded["turns"][:turn]):
        call = {"type": "tool_use", "id": f"toolu_{number:02}", "name": step["tool"],
                "input": step["input"]}
        said = [{"type": "text", "text": step["text"]}] if step["text"] else []
        conversation.append({"role": "assistant", "content": [*said, call]})
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": step["result"]}
        conversation.append({"role": "user", "content": [result]})
    conversation[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    return conversation


def ask(client, request):
    """Sends a request; returns its usage, and the milliseconds to the first event of the answer."""
    start = time.monotonic()
    first = None
    with client.messages.stream(**request, max_tokens=4) as stream:
        for event in stream:
            if event.type == "content_block_start" and first is None:
                first = 1000 * (time.monotonic() - start)
        usage = stream.get_final_message().usage
    return usage, first if first is not None else 1000 * (time.monotonic() - start)


def main():
    args = parse()
    client = Anthropic(base_url=args.url, api_key="none", max_retries=0)
    recorded = json.loads(pathlib.Path(__file__).with_suffix(".json").read_text())
    print("turn  prompt    new  computed  first, ms")
    before = 0
    for turn in range(len(recorded["turns"])):
        request = {
            "model": args.model, "system": system(recorded, turn), "tools": recorded["tools"],
            "messages": messages(recorded, turn)}
        prompt = client.messages.count_tokens(**request).input_tokens
        usage, first = ask(client, {**request, "extra_body": {"temperature": 0}})
        assert usage.input_tokens + usage.cache_read_input_tokens == prompt, usage
        new = prompt - before
        print(f"{turn + 1:4}  {prompt:6}  {new:5}  {usage.input_tokens:8}  {first:9.0f}")
        if turn > 0:
            assert usage.input_tokens <= new + PAGE + HEAD, f"turn {turn + 1}: {usage}"
        before = prompt
    print("agent: all well")


main()
