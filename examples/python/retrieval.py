"""Answers a question from a few documents, without a framework: embeds them, finds the nearest, and
asks a model with them in the prompt.

    python retrieval.py [CHAT_MODEL [EMBEDDING_MODEL]]

Without models it runs the built-in one, whose answers mean nothing.
"""

import sys

import octavo

DOCUMENTS = [
    "Octavo keeps its KV cache in pages of 16 positions.",
    "A tap is an intermediate tensor under llama.cpp's name.",
    "Perplexity is e to the mean negative log-likelihood of a token.",
]


def main(chat=None, embedding=None):
    embedder = octavo.Model(embedding)
    model = octavo.Model(chat)
    question = "What is a tap?"
    vectors = embedder.embed([*DOCUMENTS, question])  # (4, n_embd), of length 1
    scores = vectors[:-1] @ vectors[-1]
    nearest = [DOCUMENTS[at] for at in scores.argsort()[::-1][:2]]
    prompt = "Answer from these facts:\n" + "\n".join(nearest) + "\n\n" + question
    for delta in model.chat_stream(prompt, max_tokens=64):
        print(delta, end="", flush=True)
    print()


main(*sys.argv[1:])
