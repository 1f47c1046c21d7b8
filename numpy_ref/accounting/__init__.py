"""What a training step holds and computes, in whole numbers from shapes, and beside it what is measured.

memory       exact bytes, and which of them are counted
flops        exact floating-point operations, and which of them are counted
gpt2         the shapes and products of GPT-2
account      both, of a run of ours and of GPT-2
measured     what a run in NumPy is found to hold and do; `torch_port.accounting` is the twin
rows         the two beside each other, and what makes the difference
"""

from numpy_ref.accounting.account import Account, account_gpt2, account_run, check_precision, first_batches
from numpy_ref.accounting.flops import Product, chain_products, forward_flops, mlp_products, step_flops
from numpy_ref.accounting.gpt2 import (
    GPT2,
    Transformer,
    gpt2_activations,
    gpt2_attention,
    gpt2_products,
    gpt2_shapes,
    palm_flops,
)
from numpy_ref.accounting.measured import Measured, differences, file_differences, header_bytes, measure
from numpy_ref.accounting.memory import CONVENTIONS, Convention, Memory, Widths, account_memory
from numpy_ref.accounting.rows import Row, account_rows, gpt2_rows, run_rows

__all__ = [
    "CONVENTIONS",
    "GPT2",
    "Account",
    "Convention",
    "Measured",
    "Memory",
    "Product",
    "Row",
    "Transformer",
    "Widths",
    "account_gpt2",
    "account_memory",
    "account_rows",
    "account_run",
    "chain_products",
    "check_precision",
    "differences",
    "file_differences",
    "first_batches",
    "forward_flops",
    "gpt2_activations",
    "gpt2_attention",
    "gpt2_products",
    "gpt2_rows",
    "gpt2_shapes",
    "header_bytes",
    "measure",
    "mlp_products",
    "palm_flops",
    "run_rows",
    "step_flops",
]
