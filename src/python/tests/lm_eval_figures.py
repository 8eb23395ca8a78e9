"""lm-evaluation-harness in this process and against a server: equal figures on two local tasks.

    lm_eval_figures.py

From the repository's root: the tasks in tests/clients name their data so.
"""

import logging
import os
import re
import subprocess
import sys

# nothing is to be looked for on the network
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME="target/clients/hf",
                  TQDM_DISABLE="1")

from lm_eval import simple_evaluate  # noqa: E402: it reads the environment
from lm_eval.tasks import TaskManager  # noqa: E402

import octavo  # noqa: E402
from octavo.lm_eval import OctavoLM  # noqa: E402

TASKS = ["sums", "sums_generated"]


def evaluate(model, **options):
    """Returns the figures, and what the model answered to each request."""
    results = simple_evaluate(
        model=model,
        tasks=TASKS,
        task_manager=TaskManager(include_path="tests/clients", include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
        **options,
    )
    answers = {task: [sample["resps"] for sample in results["samples"][task]] for task in TASKS}
    return results["results"], answers


def main():
    logging.disable(logging.WARNING)
    command = [sys.executable, "-m", "octavo", "serve", "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        lines = iter(server.stderr.readline, "")
        url = next(re.search(r"http://\S+", line).group() for line in lines if "http:" in line)
        theirs, told = evaluate("local-completions", model_args={
            "base_url": f"{url}/v1/completions", "model": "", "max_retries": 1,
            "tokenizer_backend": "remote"})
    finally:
        server.terminate()
        server.wait()
    own, answers = evaluate(OctavoLM(octavo.Model()))
    assert own == theirs, (own, theirs)
    assert answers == told
    figures = {task: {name: value for name, value in own[task].items() if "," in name}
               for task in TASKS}
    print(f"lm-eval: equal in this process and over HTTP: {figures}")


main()
