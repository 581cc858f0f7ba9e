"""llama.cpp by its Python binding: mapped file, two threads. Its activations are 8-bit, so its tokens are its own."""

import os

import numpy as np
from llama_cpp import Llama
from measured import arguments, report

file, prompt, tokens, _, warm = arguments()
threads = len(os.sched_getaffinity(0))
model = Llama(
    file, n_ctx=len(prompt) + tokens + 8, n_threads=threads, n_threads_batch=threads, n_batch=512, verbose=False
)


def step(ids: list[int]) -> int:
    model.eval(ids)
    logits = model._ctx.get_logits_ith(-1)
    return int(np.argmax(np.ctypeslib.as_array(logits, (model.n_vocab(),))))


if warm:
    step(prompt)
    model.reset()
report(step, lambda token: step([token]), prompt, tokens)
