#!/usr/bin/env python3
"""Sends a server requests that are sound JSON and mean harm, and says what it made of them.

    hostile_requests.py http://127.0.0.1:8080 [--verbose]

Fields of every type, lists without end, messages of all kinds, schemas, patterns and grammars made
to explode. What must come of it is at the head of hostile.py.
"""

import json
import sys

from hostile import CHAT, HELLO, TEXT, run

# --- fields

# a text ends soon even where nothing limits it
SOON = [" ", "\n", ".", ",", "+", "=", *"0123aeinot"]
ODD = {
    "null": None, "true": True, "0": 0, "-1": -1, "1.5": 1.5, "2^63": 1 << 63, "2^64": 1 << 64,
    "-2^63": -(1 << 63), "1e308": 1e308, "text": "x", "empty": "", "[]": [], "[null]": [None],
    "[[]]": [[]], "[{}]": [{}], "{}": {}, "{a: {}}": {"a": {}}, "['']": [""], "NUL": "\0",
}
COMMON = """model stop seed temperature top_p top_k min_p n max_tokens stream stream_options
    logprobs presence_penalty frequency_penalty repeat_penalty repetition_penalty repeat_last_n
    logit_bias min_tokens ignore_eos stop_token_ids grammar json_schema response_format guided_regex
    cache_salt cache_prompt return_token_ids user metadata""".split()
FIELDS = {
    CHAT: ({"messages": HELLO, "max_tokens": 2}, [*COMMON, *"""messages top_logprobs tools
        tool_choice parallel_tool_calls max_completion_tokens chat_template_kwargs reasoning_effort
        reasoning_format continue_final_message add_generation_prompt""".split()]),
    TEXT: ({"prompt": "1+1=", "max_tokens": 2},
           [*COMMON, "prompt", "echo", "suffix", "best_of", "add_special_tokens"]),
    "/v1/embeddings": ({"input": "1+1="},
                       ["input", "encoding_format", "dimensions", "pooling", "model",
                        "cache_salt"]),
    "/v1/responses": ({"input": "1+1=", "max_output_tokens": 16},
                      [*COMMON, *"""input instructions tools tool_choice max_output_tokens reasoning
        previous_response_id text store include parallel_tool_calls truncation""".split()]),
    "/v1/messages": ({"messages": HELLO, "max_tokens": 2, "stop_sequences": SOON},
                     [*COMMON, *"""messages system tools tool_choice stop_sequences thinking
        output_config output_format mcp_servers""".split()]),
    "/v1/messages/count_tokens": ({"messages": HELLO}, "messages system tools".split()),
    "/api/chat": ({"model": "", "messages": HELLO, "options": {"num_predict": 2}},
                  "model messages tools options stream format think logprobs".split()),
    "/api/generate": ({"model": "", "prompt": "1+1=", "options": {"num_predict": 2}},
                      "model prompt system suffix raw images options format context".split()),
    "/api/embed": ({"model": "", "input": "1+1="}, "model input truncate dimensions".split()),
    "/api/show": ({"model": "x"}, ["model", "name", "verbose"]),
    "/completion": ({"prompt": "1+1=", "n_predict": 2},
                    [*COMMON, "prompt", "n_predict", "n_probs", *"""samplers typical_p
        top_n_sigma min_keep dynatemp_range dynatemp_exponent xtc_probability xtc_threshold
        dry_multiplier dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers
        mirostat mirostat_tau mirostat_eta adaptive_target adaptive_decay""".split()]),
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
        "an image": (CHAT, message(content=[{"type": "image_url", "image_url": {
            "url": "file:///etc/passwd"}}])),
        "a part of no type": (CHAT, message(content=[{}])),
        "10,000 parts": (CHAT, message(content=[{"type": "text", "text": "a"}] * many)),
        "content a number": (CHAT, message(content=1)),
        "token ids beyond the vocabulary": (TEXT, {"prompt": [1, 1 << 31]}),
        "token ids below 0": (TEXT, {"prompt": [-1]}),
        "n = 1e9": (CHAT, {**message(), "n": 1_000_000_000}),
        "logprobs = 1e9": (TEXT, {"prompt": "a", "logprobs": 1_000_000_000}),
        "top_logprobs = 1e9": (CHAT, {**message(), "logprobs": True,
                                      "top_logprobs": 1_000_000_000}),
        "temperature = 3": (CHAT, {**message(), "temperature": 3}),
        "tool_choice of no tool": (CHAT, {**message(), "tools": [tool], "tool_choice": {
            "type": "function", "function": {"name": "g"}}}),
        "required without tools": (CHAT, {**message(), "tool_choice": "required"}),
        "a tool without a name": (CHAT, {**message(), "tools": [{
            "type": "function", "function": {}}]}),
        "two rules": (CHAT, {**message(), "json_schema": {}, "guided_regex": "a"}),
        "a prompt beyond the context": (TEXT, {"prompt": [1] * 200_000}),
        "previous_response_id": ("/v1/responses", {"input": "a", "previous_response_id": "resp_1"}),
    }
    for name, (path, body) in wrong.items():
        report.refused(name, server.post(path, body))
    fine = {
        "content null": (CHAT, message(content=None)),
        "an unknown model": (CHAT, {**message(), "model": "gpt-99"}),
        "content of no parts": (CHAT, message(content=[])),
        "2,000 messages": (CHAT, {"messages": HELLO * 2000, "max_tokens": 1}),
        "64 prompts": (TEXT, {"prompt": ["a"] * 64, "max_tokens": 1}),
        "64 prompts of 4 texts": (TEXT, {"prompt": ["a"] * 64, "max_tokens": 1, "n": 4}),
        "n = 16": (CHAT, {**message(), "n": 16}),
        "tool call of odd arguments": (CHAT, {"max_tokens": 1, "messages": [*HELLO, {
            "role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function",
            "function": {"name": "f", "arguments": "{" * 10_000}}]}]}),
        "template syntax": (CHAT, message(
            content="{{ 1/0 }}{% for x in range(10**9) %}{% endfor %}")),
        "content of NUL": (CHAT, message(content="\0" * 100)),
        "odd kwargs": (CHAT, {**message(), "chat_template_kwargs": {
            "messages": 1, "add_generation_prompt": [], "x": {"y": [None] * 1000}}}),
    }
    for name, (path, body) in fine.items():
        report.answered(name, server.post(path, body))


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


# --- schemas and grammars made to explode


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


ATTACKS = {"fields": fields, "lists": lists, "continued": continued, "rules": rules}

if __name__ == "__main__":
    sys.exit(run(__doc__, ATTACKS))
