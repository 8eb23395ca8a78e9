#!/usr/bin/env python3
"""Makes tests/hf/types/converter.txt: hashes of what llama.cpp's converter writes.

    OCTAVO_FOLDERS=/tmp/folders cargo test --release --workspace --test octavo -- \\
        are_those_of_llama_cpps_converter
    tools/converter_goldens.py LLAMA_CPP /tmp/folders > tests/hf/types/converter.txt

LLAMA_CPP is a folder with llama.cpp's sources. Needs PyTorch, transformers and what the converter
needs. Settings that a folder leaves out are those of transformers; the others stay as they are,
whatever transformers would make of them. Vocabularies are left out. The folders are changed.
"""

import contextlib
import hashlib
import json
import logging
import os
import sys
import tempfile
from pathlib import Path

# names of models by type, where they are not the type's words and "ForCausalLM"
CLASSES = {
    "bert": "BertModel",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "eurobert": "EuroBertModel",
    "falcon_h1": "FalconH1ForCausalLM",
    "gemma3": "Gemma3ForConditionalGeneration",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma4": "Gemma4ForConditionalGeneration",
    "gemma4_text": "Gemma4ForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "idefics3": "LlamaForCausalLM",
    "internvl": "Qwen2ForCausalLM",
    "internvl_chat": "Qwen2ForCausalLM",
    "hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM",
    "minicpm": "MiniCPMForCausalLM",
    "ministral3": "Mistral3ForConditionalGeneration",
    "mistral3": "Mistral3ForConditionalGeneration",
    "modernbert": "ModernBertModel",
    "nomic_bert": "NomicBertModel",
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
    "qwen2_vl": "Qwen2VLForConditionalGeneration",
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
    "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
    "smollm3": "SmolLM3ForCausalLM",
    "smolvlm": "LlamaForCausalLM",
    "xlm-roberta": "XLMRobertaModel",
}
# names of models whose vision encoders have a class of another name
TOWERS = {
    "idefics3": "Idefics3ForConditionalGeneration",
    "internvl": "InternVisionModel",
    "internvl_chat": "InternVisionModel",
    "smolvlm": "SmolVLMForConditionalGeneration",
}
# prefix of folders whose vision encoder is meant
TOWER = "tower."
# more blocks than any of these folders has
MANY_BLOCKS = 128


def class_of(settings):
    """Returns the name of the model's class in transformers."""
    name = settings["model_type"]
    usual = "".join(part.capitalize() for part in name.split("_")) + "ForCausalLM"
    return CLASSES.get(name, usual)


def with_defaults(settings):
    """Adds transformers' default values of settings that are not given."""
    from transformers import AutoConfig

    if "llm_config" in settings:
        settings["text_config"] = settings["llm_config"]
    given = {k: v for k, v in settings.items() if k != "model_type" and v is not None}
    try:
        all_of = AutoConfig.for_model(settings["model_type"], **given).to_dict()
    except Exception as error:
        print(f"no defaults: {settings['model_type']}: {error}", file=sys.stderr)
        all_of = {}
    nested = settings.get("text_config")
    if nested:
        settings = settings | {"text_config": all_of.get("text_config", {}) | nested}
    return all_of | settings


def names_of(folder):
    """Returns the names of the folder's tensors."""
    with (folder / "model.safetensors").open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(length))


def digest(path, reader):
    """Hashes names, shapes, types and bytes, as tests/hf/types/converter.rs does."""
    result = hashlib.sha256()
    for tensor in reader(path).tensors:
        if tensor.name.endswith(".ssm_a") or tensor.name == "v.token_embd.img_break":
            continue
        shape = [int(n) for n in tensor.shape]
        while shape and shape[-1] == 1:
            shape.pop()
        line = f"{tensor.name} {'x'.join(map(str, shape))} {tensor.tensor_type.name}\n"
        result.update(line.encode())
        result.update(tensor.data.tobytes())
    return result.hexdigest()


def main():
    llama_cpp, folders = sys.argv[1:]
    sys.path.insert(0, llama_cpp)
    sys.path.insert(1, f"{llama_cpp}/gguf-py")
    import gguf
    import torch
    from conversion import get_model_class
    from conversion.base import ModelBase, TextModel

    logging.disable(logging.WARNING)

    def load_hparams(folder, is_mistral_format=False):
        return with_defaults(json.loads((Path(folder) / "config.json").read_text()))

    ModelBase.load_hparams = staticmethod(load_hparams)
    TextModel.get_vocab_base_pre = lambda self, tokenizer: "default"
    for folder in sorted(Path(folders).iterdir()):
        path = folder / "config.json"
        settings = json.loads(path.read_text())
        is_tower = folder.name.startswith(TOWER)
        name = class_of(settings)
        name = TOWERS.get(settings["model_type"], name) if is_tower else name
        settings.setdefault("architectures", [name])
        path.write_text(json.dumps(settings))
        model = get_model_class(settings["architectures"][0], mmproj=is_tower)
        model.set_vocab = model._try_set_pooling_type = lambda self: None
        # the converter expects such layers in folders of these types
        is_qwen = settings["model_type"].startswith("qwen3")
        model.no_mtp = is_qwen and not any("mtp." in name for name in names_of(folder))
        with tempfile.TemporaryDirectory() as out, torch.inference_mode():
            path = Path(out) / "f16.gguf"
            try:
                # it logs progress to stderr
                with open(os.devnull, "w") as null, contextlib.redirect_stderr(null):
                    made = model(folder, gguf.LlamaFileType.MOSTLY_F16, path)
                    if is_tower:
                        # a projector's modules may have larger numbers than blocks
                        arch = gguf.MODEL_ARCH.MMPROJ
                        made.tensor_map = gguf.get_tensor_name_map(arch, MANY_BLOCKS)
                    made.write()
            except Exception as error:
                print(f"{folder.name}: {type(error).__name__}: {error}", file=sys.stderr)
                continue
            print(folder.name, digest(path, gguf.GGUFReader))


if __name__ == "__main__":
    main()
