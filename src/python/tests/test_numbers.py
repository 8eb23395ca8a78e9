"""Logits, taps and embeddings: the command line's bits."""

from __future__ import annotations

import numpy as np
import pytest

import octavo
from octavo.comparison import read_safetensors

from conftest import shared

TEXT = "1+1=2, and 2+2=4. Once upon a time there was a number."


def test_logits_have_the_commands_bits(model, command, tmp_path):
    path = tmp_path / "logits.gguf"
    command("logits", "-p", TEXT, "--dump", path)
    file = octavo.gguf.open(path)
    printed = next(t for name, t in file.tensors.items() if "logits" in name).array()
    own = model.logits(TEXT)
    assert own.dtype == np.float32 and own.flags.c_contiguous
    assert own.shape == (len(model.tokenize(TEXT)), model.n_vocab)
    assert np.array_equal(own.view(np.uint32), printed.reshape(own.shape).view(np.uint32))
    assert np.array_equal(model.logits(model.tokenize(TEXT)), own)
    # the memory is the library's own, not a copy
    assert own.base is not None


def test_the_file_has_the_bits_of_the_model_that_is_built_in(model, model_file):
    with octavo.Model(str(model_file), kv_type="f16", device="cpu") as other:
        assert np.array_equal(other.logits(TEXT), model.logits(TEXT))


def test_taps_have_the_commands_figures(model, command_json):
    printed = command_json("logits", "-p", TEXT, "--all", "--taps", "^(Qcur|l_out)-",
                           "--json")["taps"]
    own = model.taps(TEXT, ["Qcur-*", "l_out-*"])
    assert len(own) == len(printed) > 4
    for (name, array), told in zip(own.items(), printed, strict=True):
        assert name.split(" #")[0] == told["name"]
        assert list(array.shape) == told["shape"]
        assert array.min() == np.float32(told["min"])
        assert array.max() == np.float32(told["max"])
        squares = array.astype(np.float64) ** 2
        assert np.sqrt(squares.sum()) == pytest.approx(told["norm"], rel=1e-12)


def test_taps_by_name(model):
    assert set(model.taps(TEXT)) == set(model.tap_names)
    own = model.taps(TEXT, ["result_output"])["result_output"]
    assert np.array_equal(own, model.logits(TEXT))
    with pytest.raises(octavo.ArgumentError) as caught:
        model.taps(TEXT, ["nothing-*"])
    assert caught.value.got == "nothing-*" and "l_out-0" in str(model.tap_names)


def test_a_long_text_is_the_sum_of_its_steps(long_model):
    # more tokens than a step has, so that rows come in several pieces
    ids = (long_model.tokenize(TEXT) * 60)[:700]
    taps = long_model.taps(ids, ["l_out-0", "result_output"])
    assert taps["l_out-0"].shape == (700, long_model.n_embd)
    assert np.array_equal(taps["result_output"], long_model.logits(ids))
    assert octavo.diff(long_model, taps, ids).verdict == "identical"


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
def test_embeddings_have_the_commands_bits(command, tmp_path, pooling):
    texts = [TEXT, "1+1=", "a"]
    with octavo.Model(kv_type="f32") as model:
        own = model.embed(texts, pooling=pooling)
    assert own.shape == (3, model_width()) and own.dtype == np.float32
    for row, text in zip(own, texts, strict=True):
        path = tmp_path / "one.safetensors"
        command("embed", "-p", text, "--pooling", pooling, "--dump", path, "--force")
        printed = read_safetensors(path)["pooled"]
        assert np.array_equal(row.view(np.uint32), printed.view(np.uint32)), text


def model_width():
    """Width of the built-in model."""
    return octavo.gguf.open().keys["qwen3.embedding_length"]


def test_an_embedding_model(command, tmp_path):
    path = shared("arch", "models", "bert-F32.gguf")
    dump = tmp_path / "one.safetensors"
    command("embed", path, "-p", "Hello world", "--dump", dump)
    with octavo.Model(path, kv_type="f32") as model:
        own = model.embed(["Hello world"])
        with pytest.raises(octavo.ModelError):
            model.logits("Hello world")
    assert np.array_equal(own[0], read_safetensors(dump)["pooled"])
