"""Requests that soak.py adds with --all: other interfaces and samplers, stored responses."""

import json
import time

PATIENCE = 20.0  # seconds for an answer
KEPT = 100  # stored responses

SAMPLERS = [
    {"mirostat": 2, "mirostat_tau": 3}, {"dry_multiplier": 0.8}, {"xtc_probability": 0.5},
    {"top_n_sigma": 1, "samplers": "kmt"}, {"typical_p": 0.7, "repeat_penalty": 1.2},
    {"dynatemp_range": 0.5}, {"use_beam_search": True, "stream": False, "seed": None},
]
KINDS = ["anthropic", "ollama", "sampled", "grammar", "kept", "continued", "background", "custom"]


def make(kind, rng, prompt, stored):
    """Path and body of a request; `stored` are the models and ids of responses."""
    n, messages = rng.choice([1, 8, 32]), [{"role": "user", "content": prompt}]
    stream = rng.random() < 0.5
    response = {"input": prompt, "max_output_tokens": n, "stream": stream}
    if kind == "continued" and stored:
        model, before = rng.choice(list(stored))
        response |= {"previous_response_id": before, "model": model}
    return {
        "anthropic": ("/v1/messages", {"messages": messages, "max_tokens": n,
                                       "stream": stream}),
        "ollama": ("/api/chat", {"messages": messages, "stream": stream,
                                 "options": {"num_predict": n, "seed": 1}}),
        "sampled": ("/v1/completions", {"prompt": prompt, "max_tokens": n, "temperature": 1,
                                        **rng.choice(SAMPLERS)}),
        "grammar": ("/completion", {"prompt": prompt, "n_predict": 16,
                                    "grammar": 'root ::= [0-9]+ ("," [0-9]+)*'}),
        "kept": ("/v1/responses", {**response, "store": True}),
        "continued": ("/v1/responses", {**response, "store": True}),
        "background": ("/v1/responses", {**response, "background": True}),
        "custom": ("/v1/responses", {
            **response, "max_output_tokens": 64, "tool_choice": "required",
            "tools": [{"type": "custom", "name": "f", "format": {
                "type": "grammar", "syntax": "regex", "definition": "[a-c]{3}"}}]}),
    }[kind]


def check(soak, kind, body, answer, rng):
    """Raises AssertionError if an answer is not of the right form."""
    lines = answer.split(b"\n")
    prefix = b"" if kind == "ollama" else b"data: "
    lines = [line[len(prefix):] for line in lines if line.startswith(prefix + b"{")]
    pieces = [json.loads(line) for line in lines]
    if not body.get("stream"):
        pieces = [json.loads(answer)]
    last = pieces[-1]
    if kind == "anthropic":
        assert last.get("stop_reason") or last["type"] == "message_stop", "no end"
    elif kind == "ollama":
        assert last["done"], "no end"
    elif kind == "sampled":
        assert last["choices"][0]["finish_reason"], "no end"
    elif kind == "grammar":
        text = last["content"]
        assert set(text) <= set("0123456789,"), f"not of the grammar: {text}"
    else:
        response = last.get("response", last)
        if kind == "custom":
            calls = [item for item in response["output"] if item["type"] == "custom_tool_call"]
            cut = response["status"] == "incomplete"
            assert cut or set(calls[0]["input"]) <= set("abc"), f"not of the format: {calls}"
        if kind == "background":
            return follow(soak, response, rng)
        assert response["status"] in ("completed", "incomplete"), response["status"]
        soak.stored.append((body.get("model"), response["id"]))
        # so that the server's memory does not grow by them
        if len(soak.stored) > KEPT:
            soak.get(f"/v1/responses/{soak.stored.popleft()[1]}", "DELETE")
    return None


def follow(soak, response, rng):
    """Fetches a response from the background until it has ended, or cancels or deletes it."""
    path = f"/v1/responses/{response['id']}"
    what = rng.choice(["wait", "cancel", "delete"])
    if what == "cancel":
        status, _, answer = soak.ask(f"{path}/cancel", b"{}")
        # a small answer may have ended before
        assert status == 200, f"{status} {answer[:200]!r}"
    end = time.monotonic() + PATIENCE
    while what != "delete" and json.loads(soak.get(path))["status"] == "in_progress":
        assert time.monotonic() < end, "in the background for too long"
        time.sleep(0.02)
    assert json.loads(soak.get(path, "DELETE"))["deleted"], "not deleted"
