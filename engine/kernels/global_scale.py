"""nvfp4 experts with a scale for the whole tensor, where MLX has no kernel that takes one: wherever there is no GPU."""

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import QuantizedSwitchLinear

# A weight is fp4 * block scale * global scale / (the largest fp4 * the largest block scale, an e4m3).
_LARGEST = 6.0 * 448.0


class GlobalScaled(nn.Module):
    """Stands for a QuantizedSwitchLinear: multiplies without the global scale, then by it."""

    def __init__(self, original: QuantizedSwitchLinear):
        super().__init__()
        self.original = original

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        """x [..., 1, D] and experts [...] to [..., 1, O]."""
        own = self.original
        y = mx.gather_qmm(
            x,
            own["weight"],
            own["scales"],
            rhs_indices=indices,
            transpose=True,
            group_size=own.group_size,
            bits=own.bits,
            mode=own.mode,
            sorted_indices=sorted_indices,
        )
        y = y * (own["global_scale"][indices] / _LARGEST)[..., None, None]
        return y + mx.expand_dims(own["bias"][indices], -2) if "bias" in own else y


def for_this_machine(linear: nn.Module) -> nn.Module:
    """`linear`, or what stands for it here."""
    if (
        isinstance(linear, QuantizedSwitchLinear)
        and linear.get("global_scale") is not None
        and mx.default_device() == mx.cpu
    ):
        return GlobalScaled(linear)
    return linear
