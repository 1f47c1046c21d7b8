"""Counts of operations, right and written differently."""

RIGHT = {
    "loops": (
        """
def matmul_flops(m, k, n):
    flops = 0
    for operation in ("multiply", "add"):
        flops += m * k * n
    return flops
def forward_flops(matmuls, attention_forward):
    flops = attention_forward
    for m, k, n in matmuls:
        flops += matmul_flops(m, k, n)
    return flops
def training_flops(matmuls, attention_forward, recomputed_forward, input_gradient):
    flops = forward_flops(matmuls, attention_forward) + 2 * attention_forward + recomputed_forward
    for i, (m, k, n) in enumerate(matmuls):
        flops += matmul_flops(k, m, n)
        if i > 0 or input_gradient:
            flops += matmul_flops(m, n, k)
    return flops
""",
        ("numpy", "torch"),
    ),
    "recursive": (
        """
def matmul_flops(m, k, n):
    return (m * k * n) << 1
def forward_flops(matmuls, attention_forward):
    if len(matmuls) == 0:
        return attention_forward
    first, *rest = matmuls
    return forward_flops(rest, attention_forward + matmul_flops(*first))
def training_flops(matmuls, attention_forward, recomputed_forward, input_gradient):
    forward = forward_flops(matmuls, attention_forward)
    by_weights = forward
    by_inputs = forward if input_gradient else forward_flops(matmuls[1:], attention_forward)
    return sum((forward, by_weights, by_inputs, recomputed_forward))
""",
        ("numpy",),
    ),
}
