"""Perplexity, divergence and quantization."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from ._octavo import measure_divergence, measure_perplexity, quantize_file

if TYPE_CHECKING:
    from ._octavo import Model

__all__ = ["Divergence", "Estimate", "Perplexity", "Quantized", "kl_divergence", "perplexity",
           "quantize"]


class Estimate(NamedTuple):
    """A figure and its standard error."""

    value: float
    uncertainty: float

    def __float__(self) -> float:
        return self.value


class Perplexity(NamedTuple):
    """How well a model predicts a text."""

    perplexity: Estimate
    """e to the power of `nll`."""
    nll: Estimate
    """Mean negative log-likelihood of a token, in nats."""
    tokens: int
    """Number of tokens scored."""

    def __float__(self) -> float:
        return self.perplexity.value


class Divergence(NamedTuple):
    """How far the predictions of a model are from those of a base."""

    mean: Estimate
    """Mean KL divergence of a token, in nats."""
    median: float
    percentile_99: float
    maximum: float
    same_top: Estimate
    """Fraction of tokens with the same most likely token."""
    dp: Estimate
    """Mean difference of the probability of the text's token."""
    rms_dp: Estimate
    """Root mean square of that difference."""
    perplexity: Estimate
    """Perplexity of the model."""
    base_perplexity: Estimate
    """Perplexity of the base."""
    ln_ratio: Estimate
    """Logarithm of the ratio of both perplexities."""
    tokens: int
    """Number of tokens scored."""

    def __float__(self) -> float:
        return self.mean.value


class Quantized(NamedTuple):
    """Sizes of a model before and after quantization."""

    path: str
    bytes_before: int
    bytes_after: int
    bits_before: float
    """Bits per weight."""
    bits_after: float
    """Bits per weight."""


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def perplexity(
    model: Model,
    text: str | bytes,
    *,
    chunk: int = 512,
    chunks: int | None = None,
) -> Perplexity:
    """Measures how well a model predicts a text, as `octavo perplexity` and llama-perplexity do.

    Args:
        model: The model.
        text: The text, at least two chunks long; one line feed at its end is dropped.
        chunk: Tokens of a chunk, of which the second half is scored.
        chunks: Chunks to read at most.
    """
    found = measure_perplexity(model, _bytes(text), chunk, chunks)
    return Perplexity(
        Estimate(*found["perplexity"]), Estimate(*found["nll"]), found["tokens"]
    )


def kl_divergence(
    a: Model,
    b: Model,
    text: str | bytes,
    *,
    chunk: int = 512,
    chunks: int | None = None,
) -> Divergence:
    """Measures how far the predictions of b are from those of a, KL(a || b), as `octavo perplexity
    --kl-divergence` and llama-perplexity do.

    Args:
        a: The base.
        b: The model.
        text, chunk, chunks: As for `perplexity`.
    """
    found = measure_divergence(a, b, _bytes(text), chunk, chunks)
    return Divergence(
        mean=Estimate(*found["mean"]),
        median=found["median"],
        percentile_99=found["percentile_99"],
        maximum=found["maximum"],
        same_top=Estimate(*found["same_top"]),
        dp=Estimate(*found["dp"]),
        rms_dp=Estimate(*found["rms_dp"]),
        perplexity=Estimate(*found["perplexity"]),
        base_perplexity=Estimate(*found["base_perplexity"]),
        ln_ratio=Estimate(*found["ln_ratio"]),
        tokens=found["tokens"],
    )


def quantize(
    source: str | os.PathLike[str] | None,
    target: str | os.PathLike[str],
    type: str,
    *,
    imatrix: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    allow_requantize: bool = False,
    pure: bool = False,
) -> Quantized:
    """Writes a model file with fewer bits per weight: the bytes that llama-quantize writes.

    Args:
        source: GGUF file or Hugging Face folder; None is the built-in model.
        target: File to write; an older one is replaced when all is written.
        type: "Q4_K_M", "Q8_0", ...: llama-quantize's names.
        imatrix: Importance matrix, a file of `octavo imatrix` or llama-imatrix.
        threads: Number of threads; by default one for each physical core.
        allow_requantize: Convert tensors that are quantized already, too.
        pure: Use one type for all matrices.
    """
    found = quantize_file(source, target, type, imatrix, threads, allow_requantize, pure)
    return Quantized(path=os.fspath(target), **found)
