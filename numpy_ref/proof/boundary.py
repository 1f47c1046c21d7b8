"""The boundary of reproducibility: what matches bitwise, within a tolerance, only statistically, or never.

This is the only place where a tolerance is written; what a learner's solution is allowed stands with its exercise.
Every row names the test that is its evidence, and `python -m torch_port boundary --check` measures each on the machine
at hand.

Allowances
----------
Each bounds the errors of both sides together. With U = 2**-24, half the distance of float32 numbers just above 1, an
operation is off by at most U times its result, and a sum of n products, in any order, fused or not, by at most n U
times the sum of their sizes (Higham 2002, section 3.1); factors 1 + n U are left out. So a bound takes every rounding
at its largest and all of one sign, where real ones are smaller and cancel. Where a machine may use less than a
hundredth of an allowance, the row names in `loose` the term that is to blame.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from numpy_ref.config import RunConfig
from numpy_ref.proof.equivalence import Tolerance

KINDS = ("bitwise", "within", "statistical", "never")
U = 2.0**-24

# The native run that rows are about: plain SGD, for a division by small second moments would magnify every rounding,
# and a small rate, for a step multiplies the distance of two runs by 1 + rate * (change of a gradient by the weights).
SHORT_RUN = RunConfig(
    hidden=(16,), dropout=0.0, batch_size=32, optimizer="sgd", momentum=0.0, learning_rate=2.0**-9, arithmetic="native"
)
SHORT_STEPS = 10


class Sizes(NamedTuple):
    """What the short run stays below at each of its steps; a test holds it to that."""

    weight0: float = 0.126  # a weight or bias of the first layer
    weight1: float = 0.251  # of the last one
    terms: float = 43  # of the sum that makes a hidden unit: the pixels that are not 0, and the bias
    pixels: float = 29  # their sum, and 1 for the bias
    product0: float = 2  # sum of |pixel * weight|, and |bias|
    hidden: float = 4  # sum of the hidden units, and 1 for the bias
    product1: float = 1  # sum of |unit * weight|, and |bias|
    outward: float = 2.5  # sum of the |weights| that make a logit
    unit: float = 0.32  # a hidden unit, in the mean of a batch
    error: float = 0.3  # |probability - target| of a class, in the mean of a batch
    probability: float = 0.2  # of a class


SHORT_SIZES = Sizes()
SHORT_KINK = 512 * U  # no hidden unit of the short run comes so near to the kink of its ReLU, where gradients jump


def short_run_drift() -> float:
    """How far apart two native short runs can be in a weight, beside the 2 U |weight| a step of rounding it itself.

    A step adds rate times the change of a gradient. Let a and c be the distances so far of weights in the first and the
    last layer, rounding included. Then at most

        logits        d = hidden c + outward (pixels a) + rounding (sums of 17 and of `terms` terms)
        last layer    2 p (1 - p) d <= 0.32 d for a bias; 0.32 unit d + error (d / outward) for a weight, which is less
        first layer   weight1 d + 2 c, less than d / 3 since d > 40 c
        rounding      60 U, of both sides: the sums over 32 samples and 10 classes of parts of at most 1/2, exp, p

    The pixels lie in [0, 1], and the probabilities of a batch of logits that d moves change by at most d in all.
    """
    s, drift = SHORT_SIZES, 0.0
    rounding = 2 * U * (17 * s.product1 + s.outward * s.terms * s.product0)
    for t in range(SHORT_STEPS):
        a, c = drift + 2 * t * U * s.weight0, drift + 2 * t * U * s.weight1
        d = s.hidden * c + s.outward * s.pixels * a + rounding
        drift += SHORT_RUN.learning_rate * (d / 3 + 60 * U)
    return drift


SHORT_TOLERANCE = Tolerance(relative=2 * SHORT_STEPS * U, absolute=short_run_drift())
SHORT_REASON = (
    "ten steps, each of which rounds the weight on both sides (20 U of it) and adds the rate times what the sums' "
    "rounding and the distance so far make of a gradient (`short_run_drift`)"
)
SHORT_LOOSE = "the sums of up to 43 and 32 terms, whose roundings are taken as all of one sign"

OPTIMIZER_CONDITIONS = (
    "float32; three steps at rates of at most 1/16; gradients between 3/4 and 1 and weights between 1 and 2 in size, "
    "decay at most 1/16, beta1 and momentum at most 0.9"
)
ADAM_REASON = (
    "gradients lie in [0.6, 1.15] with the decay, and a step is at most 2 rates; in U, a side: m_hat is off by 21 (5 "
    "roundings a step, 6 for the decay and the correction), v by 17 parts (4 a step and 5), the divisor by 14, the "
    "quotients by 3 more: 66 rates a step, 25 in all. The weight itself is rounded up to 3 times a step, with AdamW's "
    "decay: 18"
)


class Row(NamedTuple):
    """One line of the declared table."""

    name: str
    compared: str  # the two sides
    conditions: str  # under which the row holds
    kind: str  # one of KINDS
    reason: str  # where the kind, or the number, comes from
    evidence: str  # file::test below the repository
    tolerance: Tolerance | None = None  # of a row of the kind "within"
    loose: str = ""  # the term of the derivation by which an allowance is more than 100 times what is used of it
    false_alarms: float | None = None  # of a row of the kind "statistical": how often its test would fail by chance


ROWS = (
    # Resuming
    Row(
        "full resume",
        "a run resumed from a full checkpoint, with one that never stopped (numpy_ref)",
        "reproducible arithmetic; any save point, any number of stops, any machine",
        "bitwise",
        "every result is the exact value rounded once, and every state is in the file",
        "parity_tests/proof/test_laws.py::test_resume_after_any_steps_equals_never_stopping",
    ),
    Row(
        "full resume, port",
        "a run resumed from a full checkpoint, with one that never stopped (torch_port)",
        "reproducible arithmetic; on the CPU; any save point, any number of stops, any machine",
        "bitwise",
        "every result is the exact value rounded once, and every state is in the file",
        "parity_tests/proof/test_laws.py::test_resume_after_any_steps_equals_never_stopping",
    ),
    Row(
        "full resume, native",
        "a run resumed from a full checkpoint, with one that never stopped (either package)",
        "native arithmetic; the same build, processor and thread count",
        "bitwise",
        "the same calls on the same values in the same process environment",
        "parity_tests/proof/test_laws.py::test_resume_after_any_steps_equals_never_stopping",
    ),
    Row(
        "full resume, native, elsewhere",
        "native runs in one package with another build, kernel, instruction set or thread count",
        "the weights of the short run (`SHORT_RUN`, 10 steps); a longer run drifts further, and Adam further still",
        "within",
        SHORT_REASON,
        "parity_tests/proof/test_variety_port.py::test_native_runs_in_other_variants_are_within_their_row",
        SHORT_TOLERANCE,
        SHORT_LOOSE,
    ),
    Row(
        "saved in one, resumed in the other",
        "a run handed from package to package any number of times, with one that never left the first",
        "reproducible arithmetic; on the CPU",
        "bitwise",
        "one file format, one tree of states, and the same bits in both packages",
        "parity_tests/trainer/test_parity_train.py::test_a_run_handed_from_package_to_package_equals_one_that_never_left",
    ),
    Row(
        "weights only",
        "a run resumed from weights only, with one that never stopped",
        "at least one more step",
        "never",
        "moments, t, schedule, order, position and dropout start anew",
        "parity_tests/proof/test_laws.py::test_a_resume_from_weights_only_is_another_run",
    ),
    Row(
        "lost state",
        "a resume that loses one state, with a whole one",
        "a save point at which that state differs from a fresh run's, and at least one more step",
        "never",
        "every leaf of RunState is one that training reads",
        "parity_tests/proof/test_laws.py::test_each_lost_state_is_caught_and_named",
    ),
    Row(
        "unrestored generator",
        "a resume that leaves the dropout generator as a fresh run has it, with a whole one",
        "dropout, and at least one more step",
        "never",
        "other units are dropped",
        "parity_tests/proof/test_laws.py::test_each_lost_state_is_caught_and_named",
    ),
    Row(
        "unrestored generator, loss",
        "the held-out loss after such a resume, with that of a whole one",
        "24 seeds, native runs of 40 steps stopped after 20, dropout 1/2",
        "statistical",
        "one sequence of masks is as good as the other, so that the differences' signs are fair coins: exact two-sided "
        "sign test",
        "parity_tests/proof/test_boundary.py::test_an_unrestored_generator_changes_the_loss_by_chance_alone",
        false_alarms=0.01,
    ),
    Row(
        "other seed",
        "a resume that goes on with another seed, with a whole one",
        "at least one more step with shuffled data",
        "never",
        "the streams are functions of the seed",
        "parity_tests/proof/test_laws.py::test_a_resume_with_another_seed_is_caught",
    ),
    # The two packages
    Row(
        "NumPy against the port",
        "every leaf of the state and every record of a run in numpy_ref, with torch_port's, at every step",
        "reproducible arithmetic; on the CPU; any configuration",
        "bitwise",
        "every result is the exact value rounded once, or an operation that both frameworks round once",
        "parity_tests/trainer/test_parity_train.py::test_every_state_and_record_is_the_references",
    ),
    Row(
        "NumPy against PyTorch, native",
        "a native run in numpy_ref, with torch_port's",
        "the weights of the short run (`SHORT_RUN`, 10 steps); a longer run drifts further, and Adam further still",
        "within",
        SHORT_REASON,
        "parity_tests/proof/test_variety_port.py::test_native_runs_of_the_two_packages_are_within_their_row",
        SHORT_TOLERANCE,
        SHORT_LOOSE,
    ),
    Row(
        "streams",
        "draws of numpy_ref.rng, with torch's CPU generator in the same state",
        "uniform, permutation, integers, Bernoulli",
        "bitwise",
        "one engine, and the same words made into numbers in the same way",
        "parity_tests/trainer/test_rng.py::test_every_draw_is_torchs_from_a_seed_of_torch",
    ),
    # Machines
    Row(
        "threads",
        "the demo's final state with 1, 2 and 4 BLAS threads (numpy_ref)",
        "reproducible arithmetic",
        "bitwise",
        "a correctly rounded sum does not depend on the order of its terms",
        "parity_tests/cli/test_demo.py::test_the_final_state_has_one_digest_with_any_number_of_threads",
    ),
    Row(
        "threads, port",
        "the demo's final state with 1, 2 and 4 threads (torch_port)",
        "reproducible arithmetic",
        "bitwise",
        "a correctly rounded sum does not depend on the order of its terms",
        "parity_tests/proof/test_variety_port.py::test_the_demo_has_one_digest_in_every_variant",
    ),
    Row(
        "kernels and instruction sets",
        "the demo's final state, and a fixed corpus of products, sums and functions, with every BLAS kernel, NumPy "
        "instruction set and thread count that a machine can run",
        "reproducible arithmetic; OPENBLAS_CORETYPE, NPY_DISABLE_CPU_FEATURES, 1, 2 and 4 threads, in processes of "
        "their own",
        "bitwise",
        "each result is the exact value rounded once, or a fixed recipe of elementary operations; none depends on the "
        "order of additions",
        "parity_tests/proof/test_variety.py::test_the_demo_and_the_corpus_have_one_digest_in_every_variant",
    ),
    Row(
        "kernels and instruction sets, port",
        "the demo's final state with every instruction set and MKL kernel that a machine can run (torch_port)",
        "reproducible arithmetic; ATEN_CPU_CAPABILITY, MKL_CBWR, hash seeds, in processes of their own",
        "bitwise",
        "each result is the exact value rounded once, or a fixed recipe of elementary operations; none is fused, and "
        "none rests on MKL's vector functions, which can lose accuracy when several threads call them first (pytorch "
        "issue 188792)",
        "parity_tests/proof/test_variety_port.py::test_the_demo_has_one_digest_in_every_variant",
    ),
    Row(
        "kernels and instruction sets, native",
        "the same in native arithmetic, with another BLAS kernel, instruction set or thread count (numpy_ref)",
        "x86-64, NumPy with OpenBLAS, more than one choice; where there is none the row is not exercised",
        "never",
        "kernels add in different orders, and exp and log have other code for other registers; some pairs agree, "
        "never all",
        "parity_tests/proof/test_variety.py::test_native_bits_differ_between_the_variants_so_that_they_were_exercised",
    ),
    Row(
        "kernels and instruction sets, native, port",
        "the same in native arithmetic, with another instruction set, MKL kernel or thread count (torch_port)",
        "x86-64, torch with MKL, more than one choice; where there is none the row is not exercised",
        "never",
        "kernels add in different orders, and some fuse a multiplication and an addition; some pairs agree, never all",
        "parity_tests/proof/test_variety_port.py::test_native_bits_differ_between_the_variants_so_that_they_were_exercised",
    ),
    Row(
        "CUDA",
        "a run on a CUDA device, with one on the CPU, in either package; resumed on either",
        "reproducible arithmetic; draws made on the CPU generator; no emulation of float64 products in cuBLAS",
        "bitwise",
        "expected, not yet measured: float32 and float64 operations round once on CUDA too, and no other is used",
        "parity_tests/trainer/test_cuda.py::test_a_run_on_the_device_is_the_references_in_every_state_and_record",
    ),
    Row(
        "CUDA, native",
        "a native run on a CUDA device, with one on the CPU in either package",
        "the weights of the short run (`SHORT_RUN`, 10 steps), float32 products (TF32 off)",
        "within",
        SHORT_REASON + "; not yet measured",
        "parity_tests/trainer/test_cuda.py::test_a_native_run_is_within_its_row_of_the_cpus",
        SHORT_TOLERANCE,
        SHORT_LOOSE,
    ),
    Row(
        "CUDA resume",
        "a native run resumed on a CUDA device, with one that never stopped",
        "the same device and build, torch.use_deterministic_algorithms(True)",
        "bitwise",
        "expected, not yet measured: the same calls on the same values, none of which adds in an order of its own",
        "parity_tests/trainer/test_cuda.py::test_a_resume_on_one_device_equals_never_stopping",
    ),
    Row(
        "compiled against eager",
        "torch_port.model.Linear (native), output and gradients, compiled by torch.compile with fullgraph=True and not",
        "float32; inputs, weights and gradients between 1/2 and 1; sums of at most 64 products; a C++ compiler. "
        "Reproducible arithmetic breaks the graph: it branches on its certificate",
        "within",
        "64 U of the sum and 1 of its bias, both sides; all terms are positive, so that it is a share of the result",
        "parity_tests/trainer/test_stock.py::test_a_compiled_layer_lies_within_its_row",
        Tolerance(relative=130 * U, absolute=0.0),
        "the sums' roundings; where the compiler adds in the same order, nothing is used",
    ),
    # Batches and workers
    Row(
        "batch",
        "a row of a product or a sum, with the same row in another batch",
        "reproducible arithmetic, float32",
        "bitwise",
        "a correctly rounded sum does not depend on what else is computed",
        "parity_tests/arithmetic/test_arithmetic.py::test_matmul_does_not_depend_on_order_batch_or_side",
    ),
    Row(
        "workers",
        "a run whose samples two workers load, with one that loads them itself (torch_port)",
        "any arithmetic, noise included",
        "bitwise",
        "order, position and noise are functions of the state, and no worker holds any",
        "parity_tests/trainer/test_parity_train.py::test_workers_that_load_ahead_change_nothing",
    ),
    # The stock classes of PyTorch
    Row(
        "stock rand",
        "numpy_ref.rng.draw_uniform, with torch.rand on a CPU generator in the same state",
        "float32 and float64",
        "bitwise",
        "24 bits of a word, 53 of two",
        "parity_tests/trainer/test_rng.py::test_uniform_float32_equals_torch_rand",
    ),
    Row(
        "stock randperm",
        "numpy_ref.rng.draw_permutation, with torch.randperm on a CPU generator in the same state",
        "fewer than 2**32 / 20 numbers",
        "bitwise",
        "the same swaps, of the words' remainders",
        "parity_tests/trainer/test_rng.py::test_permutation_equals_torch_randperm",
    ),
    Row(
        "stock randint",
        "numpy_ref.rng.draw_integers, with torch.randint on a CPU generator in the same state",
        "from 0 to any end below 2**63",
        "bitwise",
        "the remainder of a word, of two from 2**28 on",
        "parity_tests/trainer/test_rng.py::test_integers_equal_torch_randint",
    ),
    Row(
        "stock bernoulli",
        "numpy_ref.rng.draw_bernoulli, with torch.bernoulli of a float32 tensor on a CPU generator in the same state",
        "any probability, rounded to float32",
        "bitwise",
        "a uniform number below the probability; bernoulli_(p) draws otherwise: see stock dropout",
        "parity_tests/trainer/test_rng.py::test_bernoulli_equals_torch_rand_below_p_and_torch_bernoulli",
    ),
    Row(
        "stock dropout",
        "the share of units that F.dropout and Tensor.bernoulli_(p) keep, with the probability",
        "2**18 units, several probabilities; never the units that `rand < p` keeps from the same state",
        "statistical",
        "they use the words in another way; and the share of n independent units is off by d or more with a "
        "probability of at most 2 exp(-2 n d**2) (Hoeffding 1963), which must exceed the rate of false alarms",
        "parity_tests/trainer/test_stock.py::test_stock_dropout_keeps_the_share_and_other_units",
        false_alarms=1e-6,
    ),
    Row(
        "stock DataLoader",
        "the order predicted in NumPy, with DataLoader(shuffle=True, generator=g)",
        "any number of whole epochs; no worker",
        "bitwise",
        "an iterator draws its base seed, then the order, and what it draws at the end of an epoch is known",
        "parity_tests/trainer/test_rng.py::test_the_order_of_a_stock_shuffling_loader_is_drawn_here_too",
    ),
    Row(
        "stock StepLR",
        "the rates of the step schedule, with torch.optim.lr_scheduler.StepLR",
        "any period and factor",
        "bitwise",
        "both multiply the last rate in float64",
        "parity_tests/trainer/test_optim.py::test_the_step_schedule_is_torchs_step_lr",
    ),
    Row(
        "stock GradScaler",
        "scales, trackers, unscaled gradients and skipped steps, with torch.amp.GradScaler",
        "any settings, any gradients, infinite and NaN included; from the first scaled loss on, before which a stock "
        "scale is not yet rounded to float32",
        "bitwise",
        "the same few float32 operations, each rounded once",
        "parity_tests/trainer/test_scaler.py::test_every_step_has_the_bits_of_torchs_scaler",
    ),
    Row(
        "stock Linear",
        "torch_port.model.Linear (reproducible), output and gradients, with torch.nn.Linear",
        "float32; inputs, weights and gradients between 1/2 and 1; sums of at most 64 products",
        "within",
        "64 U of a stock sum and 1 of its bias, 2 of ours; all terms are positive, so that it is a share of the result",
        "parity_tests/trainer/test_stock.py::test_stock_linear_lies_within_its_row",
        Tolerance(relative=67 * U, absolute=0.0),
    ),
    *(
        Row(
            f"stock autocast, {precision}",
            f"torch_port.model.Linear (reproducible) on inputs in {precision}, output and gradients, with "
            "torch.nn.Linear in torch.autocast",
            "on the CPU; float32 inputs, weights and gradients between 1/2 and 1, cast; sums of at most 64 products",
            "within",
            f"the casts are the same; then {unit}, half the distance of numbers just above 1, three times: a stock "
            "result is rounded once, with its bias, ours before the bias too. A stock sum adds 64 U, its bias 1",
            "parity_tests/trainer/test_stock.py::test_stock_autocast_lies_within_its_row",
            Tolerance(relative=3 * size + 65 * U, absolute=0.0),
        )
        for precision, unit, size in (("float16", "2**-11", 2.0**-11), ("bfloat16", "2**-8", 2.0**-8))
    ),
    Row(
        "stock BatchNorm1d",
        "torch_port.model.BatchNorm (reproducible) in training, output, gradients and running statistics, with "
        "torch.nn.BatchNorm1d",
        "float32; 2 to 16 samples between -2 and 2 with a deviation of at least 1/2, all else between 1/2 and 1",
        "within",
        "in U, a side: 34 of the mean, so 38 of an input's distance from it, at most 4; 13 of 1 / std, at most 2; so "
        "132 of a normalised input, at most 4. A gradient by the scale sums 16 of them, and rounds a sum of at most "
        "16, so 2384. That by an input is off by 1680, and all else by less",
        "parity_tests/trainer/test_stock.py::test_stock_batch_norm_lies_within_its_row",
        Tolerance(relative=0.0, absolute=4768 * U),
        "the mean's error, which meets every sample of the sum in a gradient",
    ),
    Row(
        "stock cross_entropy",
        "torch_port.model.cross_entropy (reproducible), loss and gradient, with torch.nn.functional.cross_entropy",
        "float32; logits between -2 and 2, at most 16 classes, at most 16 samples",
        "within",
        "a sample's loss, at most 6.8, is off by 38.4 U: 4 of its shifted logit, 4 of those in the sum, 18 of the "
        "sum and exp, 5.6 of log, 6.8 of the difference; ours by 19.6. The mean over samples adds 17 U of it, ours 2. "
        "A gradient, off by 41 U and 12 U of a probability and 4 U, stays below",
        "parity_tests/trainer/test_stock.py::test_stock_cross_entropy_lies_within_its_row",
        Tolerance(relative=19 * U, absolute=58 * U),
    ),
    Row(
        "stock Adam",
        "torch_port.optim.Adam (reproducible), weights and moments, with torch.optim.Adam: single-tensor, foreach, "
        "fused",
        OPTIMIZER_CONDITIONS,
        "within",
        ADAM_REASON,
        "parity_tests/trainer/test_stock.py::test_stock_adam_lies_within_its_row",
        Tolerance(relative=18 * U, absolute=25 * U),
    ),
    Row(
        "stock AdamW",
        "torch_port.optim.AdamW (reproducible), weights and moments, with torch.optim.AdamW: single-tensor, foreach, "
        "fused",
        OPTIMIZER_CONDITIONS,
        "within",
        ADAM_REASON,
        "parity_tests/trainer/test_stock.py::test_stock_adamw_lies_within_its_row",
        Tolerance(relative=18 * U, absolute=25 * U),
    ),
    Row(
        "stock SGD",
        "torch_port.optim.SGD, weights and buffers, with torch.optim.SGD: single-tensor, foreach, fused",
        OPTIMIZER_CONDITIONS,
        "within",
        "gradients are at most 1.15 with the decay, and buffers 3.1; in U, a side: a buffer is off by 1.5, 9.4 and 21 "
        "after the three steps, by 5 roundings and 0.9 of the last error; 38 rates a step of a displacement are less. "
        "The weight itself is rounded once a step: 6",
        "parity_tests/trainer/test_stock.py::test_stock_sgd_lies_within_its_row",
        Tolerance(relative=6 * U, absolute=42 * U),
    ),
    # Against mathematics
    Row(
        "gradients",
        "gradients of the model, with central differences",
        "native arithmetic, float64, differences of 2**-17, losses of order 1, no unit near its kink",
        "within",
        "truncation h**2/6 times the third derivative (2**-34 times a factor taken as 16), rounding 2**-53/h = 2**-36",
        "parity_tests/trainer/test_model.py::test_gradients_equal_central_differences",
        Tolerance(relative=2.0**-30, absolute=2.0**-30),
    ),
    Row(
        "exact steps",
        "three steps of an optimizer in float32, with the same steps in exact rationals",
        "gradients of order 1, learning rate at most 1/8, no small divisor but eps",
        "within",
        "three steps, each of at most 3 roundings of the weight itself, and 8 of a displacement of at most 6/8 (SGD; "
        "Adam: 16 of 1/8)",
        "parity_tests/trainer/test_optim.py::test_steps_of_sgd_equal_exact_rationals",
        Tolerance(relative=9 * U, absolute=18 * U),
    ),
)


def row_named(name: str) -> Row:
    """The row of that name.

    Raises:
        KeyError: there is none.
    """
    return {row.name: row for row in ROWS}[name]


def row_for(saved: Mapping[str, Any], now: Mapping[str, Any], *, arithmetic: str) -> Row:
    """The row that relates a run saved in one environment, and resumed in another, to one that never stopped.

    Native bits are promised where everything recorded is the same but Python, which computes none of them, and the
    number of processors where threads are counted: by torch itself, or as one by the variables that a BLAS reads.

    Args:
        saved: the environment in the checkpoint.
        now: the one that goes on, from `environment` of the package that resumes.
        arithmetic: of the run, "reproducible" or "native".

    Example:
        >>> from numpy_ref import environment
        >>> here = environment()
        >>> row_for(here, here, arithmetic="native").name
        'full resume, native'
        >>> row_for(here | {"machine": "another"}, here, arithmetic="reproducible").name
        'full resume'
    """
    parts = [end.get("torch") or {} for end in (saved, now)]
    packages = ["torch" in end for end in (saved, now)]
    cuda = any(part.get("device", "cpu") != "cpu" for part in parts)
    if arithmetic == "reproducible":
        if cuda:
            return row_named("CUDA")
        if packages[0] != packages[1]:
            return row_named("saved in one, resumed in the other")
        return row_named("full resume, port" if packages[1] else "full resume")
    same = _native_part(saved) == _native_part(now)
    if cuda:
        return row_named("CUDA resume" if same and parts[1].get("deterministic") else "CUDA, native")
    if packages[0] != packages[1]:
        return row_named("NumPy against PyTorch, native")
    return row_named("full resume, native" if same else "full resume, native, elsewhere")


def _native_part(environment: Mapping[str, Any]) -> dict[str, Any]:
    """What of an environment native bits may depend on."""
    threads = environment.get("threads", {})
    counted = "torch" in environment or (threads.get("OMP_NUM_THREADS") == "1" and set(threads.values()) == {"1"})
    ignored = {"python", "cpus"} if counted else {"python"}
    return {name: value for name, value in environment.items() if name not in ignored}
