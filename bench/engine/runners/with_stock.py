"""mlx-lm as it is, with all weights in memory: the reference for tokens and for speed."""

from measured import arguments
from mlx_lm import load
from mlx_loop import measure

folder, prompt, tokens, _, warm = arguments()
model, *_ = load(folder)
measure(model, prompt, tokens, warm, chunk=512)
