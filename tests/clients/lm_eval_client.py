"""lm-evaluation-harness against a server: its log-likelihoods are the engine's own.

    lm_eval_client.py OCTAVO http://127.0.0.1:8080

From the repository's root: tests/clients/sums.yaml names its data so. For every text that the
harness asked about, `OCTAVO logits` shows the logits of all positions; what follows from them must
be what the harness was told, but for the rounding of double precision.
"""

import json
import logging
import math
import os
import subprocess
import sys

# nothing is to be looked for on the network
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME="target/clients/hf",
                  TQDM_DISABLE="1")

from lm_eval import simple_evaluate  # noqa: E402: it reads the environment
from lm_eval.tasks import TaskManager  # noqa: E402

VOCABULARY = 1 << 20  # more than any

# Of a likelihood near 0: it is the difference of two numbers below 64, each the outcome of a few
# sums in double precision.
ROUNDING = 8 * math.ulp(64.0)


class Engine:
    """The program's own view of a text."""

    def __init__(self, octavo):
        self.octavo = octavo
        self.known = {}

    def logits(self, text):
        """Tokens, and for each position the logits of all tokens by their number."""
        if text not in self.known:
            command = [self.octavo, "logits", "-p", text, "--no-special", "--all", "--json",
                       "--top", str(VOCABULARY)]
            shown = subprocess.run(command, check=True, capture_output=True).stdout
            value = json.loads(shown)
            rows = [{one["id"]: one["logit"] for one in at["top"]} for at in value["positions"]]
            self.known[text] = value["tokens"], rows
        return self.known[text]

    def log_likelihood(self, context, continuation):
        """Of a continuation, and whether each of its tokens is the likeliest."""
        tokens, rows = self.logits(context + continuation)
        first = len(self.logits(context)[0])
        total, is_greedy = 0.0, True
        for at in range(first, len(tokens)):
            row = rows[at - 1]
            most = max(row.values())
            log_sum = most + math.log(math.fsum(math.exp(x - most) for x in row.values()))
            total += row[tokens[at]] - log_sum
            is_greedy &= row[tokens[at]] == most
        return total, is_greedy


def main(octavo, url):
    logging.disable(logging.WARNING)
    results = simple_evaluate(
        model="local-completions",
        model_args={"base_url": f"{url}/v1/completions", "model": "", "max_retries": 1,
                    "tokenizer_backend": "remote"},
        tasks=["sums"],
        task_manager=TaskManager(include_path="tests/clients", include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
    )
    engine, compared = Engine(octavo), 0
    for sample in results["samples"]["sums"]:
        asked = zip(sample["arguments"], sample["resps"], strict=True)
        for (context, continuation), [(told, told_greedy)] in asked:
            own, is_greedy = engine.log_likelihood(context, continuation)
            assert abs(told - own) <= ROUNDING, (context, continuation, told, own)
            assert told_greedy == is_greedy, (context, continuation)
            compared += 1
    assert compared == 40, compared
    accuracy = results["results"]["sums"]["acc,none"]
    print(f"lm-eval: all well, {compared} log-likelihoods are the engine's; "
          f"accuracy {accuracy:.2f}")


main(sys.argv[1], sys.argv[2])
