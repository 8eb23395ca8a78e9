"""GGUF files, quantization, measures, comparisons and recordings."""

from __future__ import annotations

import numpy as np
import pytest

import octavo
from octavo import gguf

from conftest import shared

TEXT = "1+1=2, 2+3=5. "


@pytest.fixture(scope="module")
def prose():
    """A text of some thousand tokens."""
    return shared("text", "gpl-3.txt").read_bytes()[:24000]


def test_a_file_is_written_as_it_was_read(model_file, tmp_path):
    a, b = gguf.open(), gguf.open(model_file)
    assert list(a.keys) == list(b.keys) and a.types == b.types
    assert all(a.keys[key] == b.keys[key] for key in a.keys)
    assert list(a.tensors) == list(b.tensors)
    for name, tensor in b.tensors.items():
        assert np.array_equal(tensor.raw, a.tensors[name].raw)
        assert tensor.array().shape == tensor.shape
        assert np.array_equal(tensor.array(), a.tensors[name].array())
        # mapped, not copied
        assert isinstance(tensor.raw, np.memmap) or tensor.nbytes == 0


def test_values_and_types(tmp_path):
    path = tmp_path / "one.gguf"
    keys = {"a.b": 3, "a.c": -3, "a.d": 1 << 40, "a.e": 0.5, "a.f": True, "a.g": "text",
            "a.h": ["x", "y"], "a.i": [1, -2], "a.j": np.uint64(7), "a.k": [0.5, 1.5],
            "a.l": np.arange(3, dtype=np.int16), "a.m": b"\xff"}
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((4, 256), dtype=np.float32)
    tensors = {"f32": weights, "f16": weights.astype(np.float16), "q4": gguf.quantize(
        weights, "Q4_K"), "q8": gguf.quantize(weights, "Q8_0"), "i": np.arange(6, dtype=np.int32)}
    size = gguf.write(path, keys, tensors)
    assert path.stat().st_size == size
    file = gguf.open(path)
    assert [file.types[key] for key in keys] == [
        "u32", "i32", "u64", "f32", "bool", "string", "[string]", "[i32]", "u64", "[f32]",
        "[i16]", "string"]
    for key, value in keys.items():
        assert file.keys[key] == (value.tolist() if isinstance(value, np.ndarray) else value), key
    assert np.array_equal(file.tensors["f32"].raw, weights)
    assert np.array_equal(file.tensors["f16"].raw, weights.astype(np.float16))
    assert file.tensors["q4"].shape == (4, 256) and file.tensors["q4"].type == "Q4_K"
    assert np.abs(file.tensors["q8"].array() - weights).max() < 0.02
    assert np.array_equal(file.tensors["q4"].array(), tensors["q4"].array())
    with pytest.raises(octavo.ArgumentError):
        gguf.write(path, {}, {"c": np.zeros(3, np.complex64)})
    with pytest.raises(KeyError):
        file.keys["nothing"]


def test_dequantized_values_are_llama_cpps(model_file):
    from octavo.comparison import read_safetensors

    known = read_safetensors(shared("goldens", "dequant.safetensors"))
    for name in ("Q4_K", "Q6_K", "Q8_0", "IQ2_XXS", "MXFP4"):
        raw = gguf.Raw(known[f"{name}.raw"].reshape(-1).view(np.uint8),
                       known[f"{name}.f32"].shape, name)
        assert np.array_equal(raw.array(), known[f"{name}.f32"])


def test_quantize_writes_the_commands_bytes(model_file, command, tmp_path):
    source = tmp_path / "f16.gguf"
    octavo.quantize(model_file, source, "F16", allow_requantize=True)
    own, printed = tmp_path / "own.gguf", tmp_path / "printed.gguf"
    result = octavo.quantize(source, own, "Q5_K_M")
    command("quantize", source, printed, "Q5_K_M")
    assert own.read_bytes() == printed.read_bytes()
    assert result.bits_after < result.bits_before and result.bytes_after < result.bytes_before
    with pytest.raises(octavo.TensorError) as caught:
        octavo.quantize(own, tmp_path / "again.gguf", "Q4_0")
    assert caught.value.tensor
    with pytest.raises(octavo.Error, match="Q4_9"):
        octavo.quantize(source, own, "Q4_9")


def test_measures_are_the_commands(model, model_file, command_json, tmp_path, prose):
    text, base, other = tmp_path / "text.txt", tmp_path / "base.kld", tmp_path / "q2.gguf"
    text.write_bytes(prose)
    octavo.quantize(model_file, other, "Q3_K_S", allow_requantize=True)
    printed = command_json("perplexity", "-f", text, "-c", 128, "--json",
                           "--kl-divergence-base", base)
    own = octavo.perplexity(model, prose, chunk=128)
    assert own.perplexity == (printed["ppl"]["value"], printed["ppl"]["uncertainty"])
    assert float(own) == printed["ppl"]["value"]
    printed = command_json("perplexity", other, "--kl-divergence-base", base, "--kl-divergence",
                           "--json")
    with octavo.Model(other, ctx=128) as quantized:
        own = octavo.kl_divergence(model, quantized, prose, chunk=128)
    assert own.mean == (printed["kld"]["value"], printed["kld"]["uncertainty"])
    assert own.same_top.value == printed["same_top"]["value"]
    assert own.base_perplexity.value == printed["ppl_base"]["value"]
    assert 0 < own.mean.value < own.maximum


def test_a_model_is_within_bounds_of_another_instruction_set(model):
    with octavo.Model(isa="scalar", kv_type="f32") as scalar, octavo.Model(kv_type="f32") as own:
        report = octavo.diff(own, scalar, TEXT)
    assert report.ok and len(report.tensors) == len(model.tap_names) and not report.absent
    assert report.logits["nmse"] < 1e-3
    assert "verdict: within" in str(report)
    assert "<table>" in report._repr_html_()
    with pytest.raises(octavo.ArgumentError):
        octavo.diff(model, model, TEXT)


def test_a_planted_fault_is_found(model):
    taps = model.taps(TEXT)
    report = octavo.diff(model, taps, TEXT)
    assert report.verdict == "identical" and report.first_divergence is None
    taps["ffn_out-1"] = taps["ffn_out-1"].copy()
    taps["ffn_out-1"][2, 5] += 1.0
    report = octavo.diff(model, taps, TEXT)
    first = report.first_divergence
    assert report.verdict == "diverged" and not report.ok
    assert (first.name, first.layer, first.position, first.channel) == ("ffn_out-1", 1, 2, 5)
    assert first.b == pytest.approx(first.a + 1.0, abs=1e-4)
    assert report.layers()[1].name == "ffn_out-1"
    some = {name: taps[name] for name in ("l_out-0", "Qcur-0")}
    report = octavo.diff(model, some, model.tokenize(TEXT))
    assert report.verdict == "identical" and len(report.tensors) == 2
    with pytest.raises(octavo.TensorError) as caught:
        octavo.diff(model, {"nothing-0": taps["l_out-0"]}, TEXT)
    assert caught.value.tensor == "nothing-0"
    with pytest.raises(octavo.MismatchError):
        octavo.diff(model, {"l_out-0": taps["l_out-0"][:-1]}, TEXT)
    with pytest.raises(octavo.MismatchError):
        octavo.diff(model, {"l_out-0": taps["l_out-0"][:, :-1]}, TEXT)


def test_safetensors_files(model, tmp_path):
    import json

    path, taps = tmp_path / "taps.safetensors", model.taps(TEXT, ["l_out-*"])
    taps = {"tokens": np.array(model.tokenize(TEXT), np.int32), **taps}
    header, data = {}, b""
    for name, array in taps.items():
        kind = {"int32": "I32", "float32": "F32"}[str(array.dtype)]
        end = len(data) + array.nbytes
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [len(data), end]}
        data += array.tobytes()
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(len(head).to_bytes(8, "little") + head + data)
    report = octavo.diff(model, path)
    assert report.verdict == "identical" and report.b == str(path)


class Module:
    """What `record` needs of a torch.nn.Module."""

    def __init__(self, work, **children):
        self.work, self.children, self.hooks = work, children, []

    def named_modules(self, prefix=""):
        yield prefix, self
        for name, child in self.children.items():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def register_forward_hook(self, hook):
        self.hooks.append(hook)
        owner = self

        class Handle:
            def remove(self):
                owner.hooks.remove(hook)

        return Handle()

    def __call__(self, *inputs):
        made = self.work(self, *inputs)
        for hook in self.hooks:
            hook(self, inputs, made)
        return made


def test_a_module_is_recorded(model):
    taps = model.taps(TEXT)
    layers = {str(i): Module(lambda _, i=i: (taps[f"l_out-{i}"][None],)) for i in range(2)}
    norm = Module(lambda _, rows: rows)

    def work(self):
        for layer in self.children["layers"].children.values():
            layer()
        return self.children["norm"](taps["result_norm"])

    whole = Module(work, layers=Module(None, **layers), norm=norm)
    with octavo.record(whole, {"layers.{i}": "l_out-{i}", "norm input": "result_norm"}) as own:
        assert own == {}
        whole()
    assert sorted(own) == ["l_out-0", "l_out-1", "result_norm"]
    assert octavo.diff(model, own, TEXT).verdict == "identical"
    assert not any(module.hooks for _, module in whole.named_modules())
    with pytest.raises(KeyError, match="nowhere"):
        octavo.record(whole, {"nowhere.{i}": "l_out-{i}"})
