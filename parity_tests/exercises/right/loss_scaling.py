"""Loss scaling, written differently."""

RIGHT = {
    "inverse": (
        """
import numpy as np
def scale_loss(loss, scale):
    return np.multiply(loss, scale)
def unscale_gradients(gradients, scale):
    inverse = np.float32(1 / np.float64(scale))
    return tuple(np.asarray(g * inverse).astype(g.dtype, copy=False) for g in gradients)
def has_inf_or_nan(gradients):
    return not all(bool(np.isfinite(g).all()) for g in gradients)
""",
        ("numpy",),
    ),
    "by elements": (
        """
import math
import numpy as np
def scale_loss(loss, scale):
    if isinstance(loss, float):
        return math.fsum([loss * scale])
    return np.array(loss.item() * scale, loss.dtype)
def unscale_gradients(gradients, scale):
    def one(g):
        return np.array([x * (1 / scale) for x in g.ravel().tolist()], np.float64).astype(g.dtype).reshape(g.shape)
    return [*map(one, gradients)]
def has_inf_or_nan(gradients):
    return sum(not math.isfinite(x) for g in gradients for x in g.ravel().tolist()) > 0
""",
        ("numpy",),
    ),
    "torch.amp": (
        """
import torch
def scale_loss(loss, scale):
    return loss * torch.full((), scale, dtype=loss.dtype) if isinstance(loss, torch.Tensor) else loss * scale
def unscale_gradients(gradients, scale):
    copies = [g.clone() for g in gradients]
    if copies:
        inverse = torch.full((), scale).double().reciprocal().float()
        for g in copies:
            torch._amp_foreach_non_finite_check_and_unscale_([g], torch.zeros(()), inverse)
    return copies
def has_inf_or_nan(gradients):
    found = torch.zeros(())
    for g in gradients:
        torch._amp_foreach_non_finite_check_and_unscale_([g.clone()], found, torch.ones(()))
    return found.item() > 0
""",
        ("torch",),
    ),
}
