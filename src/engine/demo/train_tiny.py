#!/usr/bin/env python3
"""Train tiny-qwen3, the small model that the demo and the tests use, and write it as an F16 GGUF.

    pip install numpy jax optax tokenizers gguf==0.19.0
    ./train_tiny.py --out tiny-qwen3-f16.gguf            # 700 steps, under an hour on two cores
    llama-quantize tiny-qwen3-f16.gguf tiny-qwen3-Q4_K_M.gguf Q4_K_M

Architecture qwen3: grouped-query attention 4:2, q/k norm per head, RoPE base 1e6, eps 1e-6, tied
embeddings; 2.6 million parameters. Every row is a multiple of 256 long, so that all block formats
apply. It learns small sums, capitals, opposites and a few sentence patterns, as plain text and in
ChatML: `1+1=` must continue with `2`.

Training is seeded, but its last digits depend on the machine: a model trained again is as good, not
the same bytes. From one F16 file, llama-quantize does give the same bytes.
"""

import argparse
import json
import random
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

# The model. H heads of HD elements; KV of them for keys and values.
D, FF, L, H, KV, HD, CTX, EPS, BASE = 256, 512, 4, 4, 2, 64, 512, 1e-6, 1e6
VOCAB = 1024
# The training.
N_DOCS, N_TOKENIZER_DOCS, BATCH, SEQ, WARMUP = 60000, 20000, 32, 96, 60

QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# ----------------------------------------------------------------------------------- what it learns

CAPITALS = dict(
    France="Paris", Germany="Berlin", Italy="Rome", Spain="Madrid", Portugal="Lisbon",
    Japan="Tokyo", China="Beijing", Egypt="Cairo", Kenya="Nairobi", Peru="Lima", Chile="Santiago",
    Canada="Ottawa", Norway="Oslo", Sweden="Stockholm", Finland="Helsinki", Greece="Athens",
    Poland="Warsaw", Austria="Vienna", Cuba="Havana", India="New Delhi",
)  # fmt: skip
OPPOSITES = dict(
    hot="cold", big="small", up="down", left="right", day="night", fast="slow", old="new",
    wet="dry", high="low", open="closed", full="empty", hard="soft", light="dark", rich="poor",
    near="far", early="late",
)  # fmt: skip
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
ANIMALS = ["cat", "dog", "fox", "bird", "horse", "mouse", "frog", "bear"]
COLORS = ["red", "blue", "green", "black", "white", "brown"]
PLACES = ["in the garden", "by the river", "under the tree", "near the house", "on the hill"]
FOODS = ["an apple", "some bread", "a fish", "a carrot", "some honey"]
CHINESE = [("你好", "你好！很高兴见到你。"), ("谢谢", "不客气。"), ("再见", "再见！"), ("一加一等于几？", "二。")]


def arithmetic(r):
    a, b, op = r.randrange(10), r.randrange(10), r.choice("++-")
    if op == "-" and a < b:
        a, b = b, a
    return f"{a}{op}{b}=", str(a + b if op == "+" else a - b)


def fact(r):
    """A question and its answer. The draws from `r` are part of the data set: their order stays."""
    kind = r.randrange(12)
    if kind <= 3:
        return arithmetic(r)
    if kind == 4:
        country = r.choice(list(CAPITALS))
        capital = CAPITALS[country]
        return f"What is the capital of {country}?", f"The capital of {country} is {capital}."
    if kind == 5:
        word = r.choice(list(OPPOSITES))
        return f"What is the opposite of {word}?", f"The opposite of {word} is {OPPOSITES[word]}."
    if kind == 6:
        i = r.randrange(7)
        return f"Which day comes after {DAYS[i]}?", f"{DAYS[(i + 1) % 7]} comes after {DAYS[i]}."
    if kind == 7:
        i = r.randrange(1, 8)
        return f"Count from {NUMBERS[i]}.", ", ".join(NUMBERS[i : i + 4]) + "."
    if kind == 8:
        return r.choice(CHINESE)
    animal, color = r.choice(ANIMALS), r.choice(COLORS)
    story = (
        f"Once there was a {color} {animal}. The {animal} lived {r.choice(PLACES)}. "
        f"One day the {color} {animal} found {r.choice(FOODS)}. The {animal} was very happy."
    )
    return f"Tell me about a {color} {animal}.", story


def turn(question, answer):
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"


def document(r):
    question, answer = fact(r)
    kind = r.randrange(4)
    if kind == 0:
        return question + ("" if question.endswith("=") else " ") + answer + "\n"
    if kind == 3 and r.randrange(2):
        return "".join(q + a + "\n" for q, a in (arithmetic(r) for _ in range(r.randrange(1, 7))))
    if kind == 1:
        return turn(question, answer)
    if kind == 2:
        return turn(question, answer) + turn(*fact(r))
    return "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" + turn(question, answer)


def train_tokenizer(texts):
    """Byte-level BPE with qwen2's pre-tokenizer; every byte is in the vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    assert tokenizer.get_vocab_size() <= VOCAB, tokenizer.get_vocab_size()
    return tokenizer


# ---------------------------------------------------------------------------------------- the model


def init(key):
    """Weights are (out, in), as GGUF has them; output projections of a layer start at half size."""
    keys = iter(jax.random.split(key, 4 + 8 * L))

    def matrix(n_out, n_in, gain=1.0):
        return jax.random.normal(next(keys), (n_out, n_in)) * (gain / np.sqrt(n_in))

    def layer():
        return dict(
            attn_norm=jnp.ones(D),
            ffn_norm=jnp.ones(D),
            attn_q_norm=jnp.ones(HD),
            attn_k_norm=jnp.ones(HD),
            attn_q=matrix(H * HD, D),
            attn_k=matrix(KV * HD, D),
            attn_v=matrix(KV * HD, D),
            attn_output=matrix(D, H * HD, 0.5),
            ffn_gate=matrix(FF, D),
            ffn_up=matrix(FF, D),
            ffn_down=matrix(D, FF, 0.5),
        )

    embedding = jax.random.normal(next(keys), (VOCAB, D)) * 0.05
    return dict(token_embd=embedding, output_norm=jnp.ones(D), layers=[layer() for _ in range(L)])


def rms_norm(x, weight):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + EPS) * weight


def rope(x, cos, sin):
    """Rotates pairs (i, i + HD/2)."""
    a, b = x[..., : HD // 2], x[..., HD // 2 :]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def forward(params, tokens):
    """tokens (batch, seq) -> logits (batch, seq, VOCAB)."""
    B, S = tokens.shape
    angle = jnp.arange(S)[:, None] * BASE ** (-jnp.arange(0, HD, 2) / HD)[None]
    cos, sin = jnp.cos(angle)[None, :, None], jnp.sin(angle)[None, :, None]
    mask = jnp.where(jnp.tril(jnp.ones((S, S))) > 0, 0.0, -1e9)
    x = params["token_embd"][tokens]
    for p in params["layers"]:
        h = rms_norm(x, p["attn_norm"])
        q = rope(rms_norm((h @ p["attn_q"].T).reshape(B, S, H, HD), p["attn_q_norm"]), cos, sin)
        k = rope(rms_norm((h @ p["attn_k"].T).reshape(B, S, KV, HD), p["attn_k_norm"]), cos, sin)
        v = (h @ p["attn_v"].T).reshape(B, S, KV, HD)
        k, v = jnp.repeat(k, H // KV, 2), jnp.repeat(v, H // KV, 2)
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(HD) + mask, -1)
        x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(B, S, H * HD) @ p["attn_output"].T
        h = rms_norm(x, p["ffn_norm"])
        x = x + (jax.nn.silu(h @ p["ffn_gate"].T) * (h @ p["ffn_up"].T)) @ p["ffn_down"].T
    return rms_norm(x, params["output_norm"]) @ params["token_embd"].T


def train(docs, tokenizer, steps, seed):
    encoded = [tokenizer.encode(doc, add_special_tokens=False).ids + [0] for doc in docs]
    ids = np.array([i for doc in encoded for i in doc], np.int32)
    # the last few would run past the end
    starts = np.cumsum([0] + [len(doc) for doc in encoded])[:-8]
    params = init(jax.random.PRNGKey(seed))
    print("tokens", len(ids), "params", sum(x.size for x in jax.tree.leaves(params)), flush=True)
    schedule = optax.warmup_cosine_decay_schedule(0, 3e-3, WARMUP, steps, 1e-5)
    adamw = optax.adamw(schedule, weight_decay=0.01)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), adamw)

    def loss(params, batch):
        logits = forward(params, batch[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]).mean()

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, batch):
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    state = optimizer.init(params)
    rng = np.random.default_rng(seed)
    for i in range(steps):
        batch = np.stack([ids[start : start + SEQ + 1] for start in rng.choice(starts, BATCH)])
        params, state, value = step(params, state, jnp.asarray(batch))
        if i % 50 == 0 or i == steps - 1:
            print(i, float(value), flush=True)
    return params


def show(params, tokenizer, new_tokens=14):
    """Greedy continuations, to see that it learnt."""
    run = jax.jit(forward)
    asked = turn("1+1=", "").removesuffix("<|im_end|>\n")
    for text in ["1+1=", "7+8=", "9-4=", asked, "The capital"]:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        for _ in range(new_tokens):
            padded = jnp.asarray([ids + [0] * (64 - len(ids))])
            ids.append(int(run(params, padded)[0, len(ids) - 1].argmax()))
        print(repr(tokenizer.decode(ids, skip_special_tokens=False)))


# ----------------------------------------------------------------------------------------- the file


def write(path, params, tokenizer):
    from gguf import GGUFWriter

    w = GGUFWriter(path, "qwen3")
    w.add_name("tiny-qwen3")
    w.add_context_length(CTX)
    w.add_embedding_length(D)
    w.add_block_count(L)
    w.add_feed_forward_length(FF)
    w.add_head_count(H)
    w.add_head_count_kv(KV)
    w.add_key_length(HD)
    w.add_value_length(HD)
    w.add_layer_norm_rms_eps(EPS)
    w.add_rope_freq_base(BASE)
    w.add_file_type(1)

    pieces = {i: text for text, i in tokenizer.get_vocab().items()}
    control, normal, unused = 3, 1, 5
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list([pieces.get(i, f"[PAD{i}]") for i in range(VOCAB)])
    w.add_token_types([
        control if i < len(SPECIAL) else normal if i in pieces else unused for i in range(VOCAB)
    ])
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    w.add_eos_token_id(2)
    w.add_pad_token_id(0)
    w.add_add_bos_token(False)
    w.add_chat_template(TEMPLATE)

    def tensor(name, x):
        """Vectors stay F32, as llama.cpp wants them; matrices are F16."""
        kind = np.float32 if x.ndim == 1 else np.float16
        w.add_tensor(name + ".weight", np.ascontiguousarray(x, kind))

    tensor("token_embd", params["token_embd"])
    tensor("output_norm", params["output_norm"])
    order = ["attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm"]
    order += ["attn_q", "attn_k", "attn_v", "attn_output"]
    for i, layer in enumerate(params["layers"]):
        for name in order + ["ffn_gate", "ffn_up", "ffn_down"]:
            tensor(f"blk.{i}.{name}", layer[name])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file(progress=False)
    w.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    steps = f"more than the {WARMUP} of the warm-up"
    parser.add_argument("--steps", type=int, default=700, help=steps)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    r = random.Random(args.seed)
    docs = [document(r) for _ in range(N_DOCS)]
    tokenizer = train_tokenizer(docs[:N_TOKENIZER_DOCS])
    params = train(docs, tokenizer, args.steps, args.seed)
    write(args.out, jax.tree.map(np.asarray, params), tokenizer)
    show(params, tokenizer)


if __name__ == "__main__":
    main()
