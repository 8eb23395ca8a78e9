"""Chats: equal to the command line's and to the server's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request

import pytest

import octavo

from conftest import shared

QUESTION = [{"role": "user", "content": "What is 1+1?"}]


@pytest.fixture(scope="module")
def server():
    """Address of a server of the built-in model."""
    command = [sys.executable, "-m", "octavo", "serve", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        lines = iter(process.stderr.readline, "")
        yield next(re.search(r"http://\S+", line).group() for line in lines if "http:" in line)
    finally:
        process.terminate()
        assert process.wait(60) in (0, 143)


def ask(server, request):
    """Asks the server; returns its first choice."""
    body = json.dumps(request).encode()
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(f"{server}/v1/chat/completions", body, headers)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return json.load(answer)["choices"][0]


def test_chat_is_what_the_command_prints(model, command_json):
    printed = command_json("run", "--chat", "-p", "What is 1+1?", "-n", 24, "--json")
    own = model.chat(QUESTION, max_tokens=24, temperature=0)
    assert own.prompt_tokens == printed["prompt_tokens"]
    assert own.tokens == printed["tokens"]
    assert own.text == printed["text"]
    assert model.chat("What is 1+1?", max_tokens=24, temperature=0).text == own.text


def test_chat_is_what_the_server_answers(model, server):
    tools = [{"type": "function", "function": {
        "name": "add", "parameters": {
            "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}]
    for more in (
        {},
        {"temperature": 0.8, "seed": 3},
        {"json_schema": {"type": "object", "properties": {"n": {"enum": [1, 2]}},
                         "required": ["n"], "additionalProperties": False}},
        {"tools": tools, "tool_choice": "required"},
    ):
        options = {"temperature": 0, "max_tokens": 48, **more}
        answer = ask(server, {"messages": QUESTION, **options})
        own = model.chat(QUESTION, **options)
        assert own.text == (answer["message"]["content"] or ""), more
        assert own.finish_reason == answer["finish_reason"], more
        theirs = answer["message"].get("tool_calls", [])
        assert [call["function"] for call in own.tool_calls] == (
            [call["function"] for call in theirs]
        )


def test_a_chat_streams(model):
    whole = model.chat(QUESTION, max_tokens=24, temperature=0)
    with model.chat_stream(QUESTION, max_tokens=24, temperature=0) as stream:
        text = "".join(delta.text for delta in stream)
    assert text == whole.text
    assert stream.completion.message == whole.message
    assert whole.message["role"] == "assistant"


def test_the_template_is_rendered(model):
    prompt = model.apply_chat_template(QUESTION)
    assert "What is 1+1?" in prompt
    assert model.tokenize(prompt, add_special=False)[-3:] == (
        model.chat(QUESTION, max_tokens=1).prompt_tokens[-3:]
    )


def test_wrong_messages_are_named(model):
    with pytest.raises(octavo.ArgumentError) as caught:
        model.chat([{"role": "nobody", "content": "hm"}])
    assert caught.value.name == "messages[0].role"
    with pytest.raises(octavo.ArgumentError):
        model.chat(QUESTION, temperature=-1)
    with pytest.raises(octavo.ArgumentError) as caught:
        model.chat(QUESTION, images=[b"no image"])
    assert "images" in str(caught.value)


def test_images(command_json):
    text = shared("vision", "vl-a-text-F32.gguf")
    tower = shared("vision", "vl-a-mmproj-F32.gguf")
    photo = shared("vision", "images", "photo.png")
    printed = command_json("run", text, "--mmproj", tower, "--image", photo, "--chat",
                           "-p", "What is this?", "-n", 8, "--json")
    with octavo.Model(text, mmproj=tower) as model:
        for image in (photo, photo.read_bytes()):
            own = model.chat("What is this?", images=[image], max_tokens=8, temperature=0)
            assert own.tokens == printed["tokens"]
