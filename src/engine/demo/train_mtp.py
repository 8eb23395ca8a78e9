#!/usr/bin/env python3
"""Train an MTP layer for tiny-qwen3, and write both as one GGUF file, to measure drafts with.

    pip install numpy jax optax tokenizers gguf==0.19.0
    ./train_mtp.py --model tiny-qwen3-Q4_K_M.gguf --out tiny-mtp-f16.gguf    # a few minutes

The trunk stays as it is; the layer learns the trunk's own distribution of the token after the next
one, also from its own hidden states, as a chain of draft tokens reads them. As no file of qwen3 has
such layers, the file is of qwen35, all of whose layers have attention: its gates are sigmoid(0), a
half, and output projections are doubled.
"""

import argparse
import random
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import train_tiny as tiny
from gguf import GGUFReader, GGUFWriter, dequantize
from train_tiny import BASE, D, EPS, FF, H, HD, KV, L, VOCAB, rms_norm, rope

SEQ, BATCH, WARMUP = 128, 8, 20
MATRICES = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
VECTORS = ["attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm"]


def read(path):
    """The trunk's weights and the file's keys."""
    file = GGUFReader(path)
    data = {t.name: dequantize(t.data, t.tensor_type).astype(np.float32) for t in file.tensors}

    def layer(i):
        return {n: data[f"blk.{i}.{n}.weight"] for n in MATRICES + VECTORS}

    params = dict(token_embd=data["token_embd.weight"], output_norm=data["output_norm.weight"])
    return dict(params, layers=[layer(i) for i in range(L)]), file


def block(p, x):
    """One layer of the trunk, on x (batch, seq, D)."""
    B, S, _ = x.shape
    angle = jnp.arange(S)[:, None] * BASE ** (-jnp.arange(0, HD, 2) / HD)[None]
    cos, sin = jnp.cos(angle)[None, :, None], jnp.sin(angle)[None, :, None]
    mask = jnp.where(jnp.tril(jnp.ones((S, S))) > 0, 0.0, -1e9)
    h = rms_norm(x, p["attn_norm"])
    q = rope(rms_norm((h @ p["attn_q"].T).reshape(B, S, H, HD), p["attn_q_norm"]), cos, sin)
    k = rope(rms_norm((h @ p["attn_k"].T).reshape(B, S, KV, HD), p["attn_k_norm"]), cos, sin)
    v = jnp.repeat((h @ p["attn_v"].T).reshape(B, S, KV, HD), H // KV, 2)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, jnp.repeat(k, H // KV, 2)) / np.sqrt(HD) + mask
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v).reshape(B, S, H * HD)
    x = x + mixed @ p["attn_output"].T
    h = rms_norm(x, p["ffn_norm"])
    return x + (jax.nn.silu(h @ p["ffn_gate"].T) * (h @ p["ffn_up"].T)) @ p["ffn_down"].T


def hidden(trunk, tokens):
    """The trunk's rows after the final norm."""
    x = trunk["token_embd"][tokens]
    for p in trunk["layers"]:
        x = block(p, x)
    return rms_norm(x, trunk["output_norm"])


def predict(mtp, embedded, before):
    """The layer's rows after its head norm, from embeddings and the hidden states before them."""
    both = [rms_norm(embedded, mtp["enorm"]), rms_norm(before, mtp["hnorm"])]
    return rms_norm(block(mtp["block"], jnp.concatenate(both, -1) @ mtp["eh_proj"].T), mtp["norm"])


def after(rows):
    """Rows of the position before each, zeros first."""
    return jnp.pad(rows, ((0, 0), (1, 0), (0, 0)))[:, :-1]


def train(trunk, ids, starts, steps, seed):
    block0 = tiny.init(jax.random.PRNGKey(seed))["layers"][0]
    mtp = dict(block=block0, eh_proj=jnp.concatenate([jnp.eye(D) / 2, jnp.eye(D) / 2], 1))
    mtp.update(enorm=jnp.ones(D), hnorm=jnp.ones(D), norm=jnp.asarray(trunk["output_norm"]))
    schedule = optax.warmup_cosine_decay_schedule(0, 3e-3, WARMUP, steps, 1e-5)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))
    head = trunk["token_embd"].T

    def loss(mtp, batch, rows, targets):
        embedded = trunk["token_embd"][batch]
        first = predict(mtp, embedded, after(rows))
        second = predict(mtp, embedded, after(first))
        each = [optax.softmax_cross_entropy(x @ head, targets).mean() for x in (first, second)]
        right = jnp.argmax(first @ head, -1) == jnp.argmax(targets, -1)
        return each[0] + 0.5 * each[1], right.mean()

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(mtp, state, batch):
        rows = hidden(trunk, batch)
        targets = jax.nn.softmax(rows @ head, -1)
        (_, right), grads = jax.value_and_grad(loss, has_aux=True)(mtp, batch, rows, targets)
        updates, state = optimizer.update(grads, state, mtp)
        return optax.apply_updates(mtp, updates), state, right

    state, rng = optimizer.init(mtp), np.random.default_rng(seed)
    for i in range(steps):
        batch = np.stack([ids[start : start + SEQ] for start in rng.choice(starts, BATCH)])
        mtp, state, right = step(mtp, state, jnp.asarray(batch))
        if i % 20 == 0 or i == steps - 1:
            print(i, f"as the trunk's choice: {float(right):.3f}", flush=True)
    return mtp


def write(path, trunk, mtp, file, depth):
    """`depth` layers, those after the trunk's own with outputs of zero."""
    w = GGUFWriter(path, "qwen35")
    w.add_name("tiny-mtp")
    w.add_context_length(tiny.CTX)
    w.add_embedding_length(D)
    w.add_block_count(depth + 1)
    w.add_uint32("qwen35.nextn_predict_layers", 1)
    w.add_uint32("qwen35.full_attention_interval", 1)
    w.add_feed_forward_length(FF)
    w.add_head_count(H)
    w.add_head_count_kv(KV)
    w.add_key_length(HD)
    w.add_value_length(HD)
    w.add_layer_norm_rms_eps(EPS)
    w.add_rope_freq_base(BASE)
    w.add_rope_dimension_count(HD)
    w.add_array("qwen35.rope.dimension_sections", [11, 11, 10, 0])
    # no layer reads these
    for key, value in dict(
        conv_kernel=4, inner_size=64, state_size=32, time_step_rank=2, group_count=2
    ).items():
        w.add_uint32(f"qwen35.ssm.{key}", value)
    w.add_file_type(1)
    for key in ["model", "pre", "eos_token_id", "add_bos_token"]:
        value = file.fields[f"tokenizer.ggml.{key}"].contents()
        add = w.add_string if isinstance(value, str) else w.add_uint32
        (w.add_bool if isinstance(value, bool) else add)(f"tokenizer.ggml.{key}", value)
    w.add_token_list(file.fields["tokenizer.ggml.tokens"].contents())
    w.add_token_types(file.fields["tokenizer.ggml.token_type"].contents())
    w.add_token_merges(file.fields["tokenizer.ggml.merges"].contents())
    w.add_chat_template(tiny.TEMPLATE)

    def tensor(name, x):
        kind = np.float32 if x.ndim == 1 else np.float16
        w.add_tensor(name + ".weight", np.ascontiguousarray(x, kind))

    def layer(i, p):
        names = dict(ffn_norm="post_attention_norm")
        for name in VECTORS + MATRICES:
            x = np.asarray(p[name])
            if name == "attn_q":
                # each head's rows are followed by those of its gate
                heads = x.reshape(H, HD, D)
                x = np.concatenate([heads, np.zeros_like(heads)], 1).reshape(2 * H * HD, D)
            tensor(f"blk.{i}.{names.get(name, name)}", 2 * x if name == "attn_output" else x)

    tensor("token_embd", trunk["token_embd"])
    tensor("output_norm", trunk["output_norm"])
    idle = dict(trunk["layers"][0], attn_output=np.zeros((D, H * HD)), ffn_down=np.zeros((D, FF)))
    layers = trunk["layers"] + [idle] * (depth - L) + [mtp["block"]]
    for i, p in enumerate(layers):
        layer(i, p)
    for name in ["enorm", "hnorm", "eh_proj"]:
        tensor(f"blk.{depth}.nextn.{name}", np.asarray(mtp[name]))
    tensor(f"blk.{depth}.nextn.shared_head_norm", np.asarray(mtp["norm"]))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file(progress=False)
    w.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="tiny-qwen3, of any weight type")
    parser.add_argument("--out", required=True)
    steps = f"more than the {WARMUP} of the warm-up"
    parser.add_argument("--steps", type=int, default=300, help=steps)
    parser.add_argument("--seed", type=int, default=1)
    depth = "layers of a second file, as slow as a deeper model; the added ones do nothing"
    parser.add_argument("--deep", type=int, default=28, help=depth)
    args = parser.parse_args()
    trunk, file = read(args.model)
    r = random.Random(args.seed)
    docs = [tiny.document(r) for _ in range(tiny.N_DOCS)]
    # the tokenizer of the trunk, which is made of the first documents of its seed
    first = random.Random(0)
    texts = [tiny.document(first) for _ in range(tiny.N_TOKENIZER_DOCS)]
    tokenizer = tiny.train_tokenizer(texts)
    pieces = file.fields["tokenizer.ggml.tokens"].contents()
    assert all(pieces[i] == text for text, i in tokenizer.get_vocab().items()), "another vocabulary"
    encoded = [tokenizer.encode(doc, add_special_tokens=False).ids + [0] for doc in docs]
    ids = np.array([i for doc in encoded for i in doc], np.int32)
    starts = np.cumsum([0] + [len(doc) for doc in encoded])[:-8]
    assert VOCAB == len(pieces)
    mtp = train(jax.tree.map(jnp.asarray, trunk), ids, starts, args.steps, args.seed)
    write(args.out, trunk, mtp, file, L)
    write(args.out.removesuffix(".gguf") + f"-{args.deep}.gguf", trunk, mtp, file, args.deep)


if __name__ == "__main__":
    main()
