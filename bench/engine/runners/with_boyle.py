"""boyle (the pager of oMLX's MoE offload): original safetensors, reader threads, a byte budget.

It is written for macOS: on Linux it gets a number for F_NOCACHE, which is then ignored, and a working set size.
"""

import fcntl

import mlx.core as mx

if not hasattr(fcntl, "F_NOCACHE"):
    plain_fcntl, plain_info = fcntl.fcntl, mx.device_info
    fcntl.F_NOCACHE = 48
    fcntl.fcntl = lambda fd, command, *more: 0 if command == 48 else plain_fcntl(fd, command, *more)
    mx.device_info = lambda *device: {**plain_info(*device), "max_recommended_working_set_size": 16 << 30}

from boyle.loader import load
from measured import arguments
from mlx_loop import measure

folder, prompt, tokens, memory_bytes, warm = arguments()
loaded = load(folder, budget=f"{memory_bytes // 10**6}MB", max_context=1024, headroom="50MB")
model = getattr(loaded, "model", None) or loaded[0]
measure(model, prompt, tokens, warm, chunk=None)
