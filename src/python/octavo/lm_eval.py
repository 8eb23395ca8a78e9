"""A model class for lm-evaluation-harness, which computes in this process.

>>> import lm_eval, octavo
>>> from octavo.lm_eval import OctavoLM
>>> lm_eval.simple_evaluate(OctavoLM(octavo.Model("model.gguf")), tasks=["arc_easy"])

Contexts of multiple choices that begin alike are computed once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lm_eval.api.model import TemplateLM

from ._octavo import score_continuations
from .model import Model

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lm_eval.api.instance import Instance

__all__ = ["OctavoLM"]

MAX_GENERATED = 256
"""Tokens that a task without a limit of its own may generate."""


class OctavoLM(TemplateLM):  # type: ignore[misc]
    """Answers the harness's requests.

    Args:
        model: A loaded model, or what `octavo.Model` takes as its source.
        **options: Of `octavo.Model`, if it is not loaded.
    """

    def __init__(self, model: Model | str | None = None, **options: Any) -> None:
        super().__init__()
        # the harness passes settings of its own
        known = (
            *("device", "ctx", "kv_type", "threads", "isa", "parallel"),
            *("gpu_layers", "n_cpu_moe"),
        )
        options = {name: options[name] for name in known if options.get(name) is not None}
        self.model = model if isinstance(model, Model) else Model(model, **options)
        facts = self.model.facts
        self._prefix: int | None = facts["bos"] if facts["bos"] is not None else facts["eos"]
        self._end: int | None = facts["eos"]

    @property
    def eot_token_id(self) -> int | None:
        """Token that ends a text."""
        return self._end

    @property
    def prefix_token_id(self) -> int | None:
        """Token before a text without a context."""
        return self._prefix

    @property
    def tokenizer_name(self) -> str:
        """Name of the tokenizer, of which the harness's cache takes note."""
        return self.model.name

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **options: Any
    ) -> list[int]:
        """Returns the token ids of a text."""
        return self.model.tokenize(
            string, add_special=bool(add_special_tokens), parse_special=True
        )

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Returns the prompt of a conversation."""
        return self.model.apply_chat_template(
            chat_history, add_generation_prompt=add_generation_prompt
        )

    def _loglikelihood_tokens(
        self,
        requests: Iterable[tuple[Any, list[int], list[int]]],
        disable_tqdm: bool = False,
        **options: Any,
    ) -> list[tuple[float, bool]]:
        return score_continuations(self.model, [self._fitting(c, t) for _, c, t in requests])

    def _fitting(self, context: list[int], tokens: list[int]) -> tuple[list[int], list[int]]:
        """Drops the beginning of a context that does not fit, as the harness's models do."""
        room = self.model.n_ctx + 1 - len(tokens)
        return context[-room:] if room < len(context) else context, tokens

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Scores whole texts, in windows of the context."""
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        totals = []
        for request in requests:
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self._prefix,
                max_seq_len=self.model.n_ctx,
                context_len=1,
            )
            pairs = [make_disjoint_window(window) for window in windows]
            totals.append(sum(one[0] for one in score_continuations(self.model, pairs)))
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Generates texts, those with equal settings together."""
        texts = [""] * len(requests)
        groups: dict[str, list[int]] = {}
        for at, request in enumerate(requests):
            groups.setdefault(repr(sorted(request.args[1].items())), []).append(at)
        for places in groups.values():
            settings = _settings(requests[places[0]].args[1])
            prompts = [self.tok_encode(requests[at].args[0]) for at in places]
            for at, completion in zip(places, self.model.batch(prompts, **settings), strict=True):
                texts[at] = completion.text
        return texts


def _settings(asked: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of `Model.generate` for those of a task."""
    until = asked.get("until") or []
    settings: dict[str, Any] = {
        "max_tokens": asked.get("max_gen_toks", MAX_GENERATED),
        "stop": [until] if isinstance(until, str) else [text for text in until if text],
    }
    if asked.get("do_sample"):
        names = ("temperature", "top_p", "top_k", "seed")
        settings.update({name: asked[name] for name in names if name in asked})
    return settings
