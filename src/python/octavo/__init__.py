"""Octavo runs GGUF language models, with numbers that can be checked.

>>> import octavo
>>> m = octavo.Model()                          # the small model that is built in
>>> m.generate("1+1=", max_tokens=1).text
'2'
>>> m.logits("1+1=").shape                      # (tokens, vocabulary)
(4, 1024)
"""

from __future__ import annotations

from ._octavo import Completion, Delta, Logprob, Stream, Timings, __version__
from .errors import (
    ArgumentError,
    ClosedError,
    ContextError,
    DeviceError,
    Error,
    ForkedError,
    HubError,
    MismatchError,
    ModelError,
    NumericError,
    TensorError,
    TokenError,
)
from .model import Model

# as typing has it, whose import takes longer than all of this package's
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import gguf, lm_eval
    from .comparison import Report, diff
    from .measures import Divergence, Estimate, Perplexity, Quantized
    from .measures import kl_divergence, perplexity, quantize
    from .recording import Recording, record

__all__ = [
    "ArgumentError",
    "ClosedError",
    "Completion",
    "ContextError",
    "Delta",
    "DeviceError",
    "Divergence",
    "Error",
    "Estimate",
    "ForkedError",
    "HubError",
    "Logprob",
    "MismatchError",
    "Model",
    "ModelError",
    "NumericError",
    "Perplexity",
    "Quantized",
    "Recording",
    "Report",
    "Stream",
    "TensorError",
    "Timings",
    "TokenError",
    "__version__",
    "diff",
    "gguf",
    "kl_divergence",
    "lm_eval",
    "perplexity",
    "quantize",
    "record",
]

# Names that are imported when they are first used, so that `import octavo` is fast.
_LATER = {
    "Divergence": "measures",
    "Estimate": "measures",
    "Perplexity": "measures",
    "Quantized": "measures",
    "Recording": "recording",
    "Report": "comparison",
    "diff": "comparison",
    "kl_divergence": "measures",
    "perplexity": "measures",
    "quantize": "measures",
    "record": "recording",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in ("gguf", "lm_eval"):
        return import_module(f".{name}", __name__)
    if name in _LATER:
        value = getattr(import_module(f".{_LATER[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
