"""Generated texts: equal to the command line's, in one call or many."""

from __future__ import annotations

import json
import threading

import pytest

import octavo

PROMPTS = ["1+1=", "Once upon a time", "12+30=", "The", "a b c d e f g"]


def test_generate_is_what_the_command_prints(model, command_json):
    for prompt in PROMPTS:
        printed = command_json("run", "-p", prompt, "-n", 24, "--json", "--logprobs", 2)
        own = model.generate(prompt, max_tokens=24, logprobs=2)
        assert own.text == printed["text"]
        assert own.tokens == printed["tokens"]
        assert own.prompt_tokens == printed["prompt_tokens"]
        assert own.finish_reason == printed["finish_reason"]
        told = [(one["id"], one["logprob"]) for one in printed["logprobs"]]
        assert [(one.id, one.logprob) for one in own.logprobs] == told
        assert [len(one.top) for one in own.logprobs] == [2] * len(told)


def test_sampling_is_the_commands(model, command_json):
    options = ["--temp", 0.9, "--top-k", 30, "--seed", 7, "--repeat-penalty", 1.1]
    printed = command_json("run", "-p", "Once", "-n", 32, "--json", *options)
    own = model.generate(
        "Once", max_tokens=32, temperature=0.9, top_k=30, seed=7, repeat_penalty=1.1
    )
    assert own.tokens == printed["tokens"]
    # without a seed of its own, each text has another
    texts = {model.generate("Once", max_tokens=32, temperature=2.0).text for _ in range(4)}
    assert len(texts) > 1


def test_a_batch_has_the_texts_of_single_calls(model):
    alone = [model.generate(prompt, max_tokens=20).tokens for prompt in PROMPTS]
    together = model.batch(PROMPTS, max_tokens=20)
    assert [one.tokens for one in together] == alone
    assert model.batch([]) == []


def test_ids_and_bytes_are_texts_too(model):
    ids = model.tokenize("1+1=")
    assert model.generate(ids, max_tokens=1).text == "2"
    assert model.generate(b"1+1=", max_tokens=1).text == "2"


def test_a_stream_has_the_whole_text(model):
    whole = model.generate("Once upon", max_tokens=16)
    with model.stream("Once upon", max_tokens=16) as stream:
        deltas = list(stream)
    assert "".join(str(delta) for delta in deltas) == whole.text
    assert [token for delta in deltas for token in delta.tokens] == whole.tokens
    assert stream.completion.text == whole.text
    assert list(stream) == []


def test_a_stream_that_is_left_ends_its_request(model):
    for leave in (lambda s: s.close(), lambda s: None):
        stream = model.stream("Once", ignore_eos=True)
        next(stream)
        leave(stream)
        del stream
    # all places are free again: this would wait behind requests that go on to the end
    assert model.generate("1+1=", max_tokens=1).timings.queued < 5.0


def test_stop_and_limits(model):
    whole = model.generate("Once upon", max_tokens=24).text
    stop = whole[3:6]
    cut = model.generate("Once upon", max_tokens=24, stop=stop)
    assert cut.text == whole[: whole.index(stop)]
    assert cut.finish_reason == "stop"
    limited = model.generate("Once upon", max_tokens=2, ignore_eos=True)
    assert (limited.finish_reason, limited.finish_detail) == ("length", "max_tokens")
    assert len(limited.tokens) == 2


def test_rules_bind(model):
    yes = model.generate("1+1=", max_tokens=8, grammar='root ::= "yes" | "no"')
    assert yes.text in ("yes", "no")
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
              "additionalProperties": False}
    found = model.generate("{", max_tokens=40, json_schema=schema, logit_bias={5: 0.0})
    if found.finish_reason == "stop":
        assert set(json.loads(found.text)) == {"n"}
    else:
        assert found.text.startswith("{")


def test_threads_share_a_model(model):
    alone = [model.generate(prompt, max_tokens=30).tokens for prompt in PROMPTS]
    found = [None] * len(PROMPTS)

    def work(at):
        found[at] = model.generate(PROMPTS[at], max_tokens=30).tokens
        model.logits(PROMPTS[at])

    threads = [threading.Thread(target=work, args=(at,)) for at in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == alone


def test_two_models_in_one_process(model, model_file):
    with octavo.Model(model_file, threads=1) as other:
        assert other.generate("1+1=", max_tokens=8).tokens == (
            model.generate("1+1=", max_tokens=8).tokens
        )


def test_tokens(model, command):
    for text in PROMPTS:
        ids = model.tokenize(text)
        assert model.detokenize(ids) == text
        printed = json.loads(command("tokenize", "-p", text, "--ids"))
        assert ids == printed


def test_timings_add_up(model):
    timings = model.generate("Once upon a time", max_tokens=12, ignore_eos=True).timings
    assert timings.generated_tokens == 12
    assert timings.prompt_tokens == len(model.tokenize("Once upon a time"))
    assert 0 < timings.prefill <= timings.first_token <= timings.total
    assert timings.decode_rate == pytest.approx(11 / timings.decode, rel=1e-6)
