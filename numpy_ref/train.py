"""A run: its configuration, its whole state, and the loop that advances it.

`RunState` holds all that training changes, random state included. If it is not in there, it does not survive; so a run
continued from its state alone equals one that never stopped.
"""

import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numpy_ref import data as data_module
from numpy_ref import model as network
from numpy_ref import optim
from numpy_ref.arithmetic.operations import Arithmetic, arithmetic_named, check_subnormals
from numpy_ref.config import RunConfig
from numpy_ref.data import Dataset, Position
from numpy_ref.optim import ScalerState, has_inf_or_nan, init_scaler, scaler_step, unscale_gradients
from numpy_ref.rng import WORDS, StreamState, draw_noise, generator_from, init_stream, stream_state
from numpy_ref.tree import Leaf, copy_tree, flatten, structure_faults
from numpy_ref.types import Array, Arrays

__all__ = [
    "Best",
    "Evaluation",
    "RngState",
    "Run",
    "RunState",
    "StepRecord",
    "check_run",
    "evaluate",
    "init_run",
    "init_state",
    "restore",
    "snapshot",
    "train_n_steps",
]

Scaler = ScalerState | dict[str, Any]  # empty without loss scaling, as the stock scaler's state is


class RngState(NamedTuple):
    """The streams that training draws from.

    Resume:
        `order`, the stream at the start of this epoch: without it an epoch is shuffled anew, so that some samples are
        seen twice and others never. `dropout`: without it other units are dropped. Initial weights are drawn once, so
        their stream is no state.
    """

    order: StreamState
    dropout: StreamState


class Best(NamedTuple):
    """The best weights so far, by the loss on the held-out samples; a copy, never a view of the live ones.

    Resume:
        Without it a worse model is kept as the best at the next evaluation.
    """

    loss: float
    step: int
    model: Arrays


class RunState(NamedTuple):
    """All that training changes.

    Attributes:
        step: completed steps, skipped updates included.
        mode: "train" or "eval", as in `torch.nn.Module`: in "eval" nothing is dropped, running statistics are used.
        model: weights, biases and running statistics by name, float32.
        optimizer: counts and moments, by the names of the parameters.
        schedule: its tick, and the rate of the next update.
        scaler: of the loss, in float16; else empty.
        rng: the streams of the order and of dropout.
        data: epochs completed, and samples consumed of this one.
        best: the best weights so far, by the loss on the held-out samples.

    Resume:
        Each leaf is needed; `parity_tests/proof/mutants.py` holds, for each, a resume that loses it and is caught.
    """

    step: int
    mode: str
    model: Arrays
    optimizer: optim.AdamState | optim.SGDState
    schedule: optim.ScheduleState
    scaler: Scaler
    rng: RngState
    data: Position
    best: Best


class Run(NamedTuple):
    """A run: what was decided, what training changes, and who it is.

    Attributes:
        config: the settings.
        state: all that training changes.
        run_id: 32 hexadecimal digits, drawn from the system when the run was started.
        fingerprint: of the data set.
    """

    config: RunConfig
    state: RunState
    run_id: str
    fingerprint: str

    @property
    def step(self) -> int:
        """Completed steps."""
        return self.state.step


class StepRecord(NamedTuple):
    """What a step did, for logs and comparisons; no part of the state.

    Attributes:
        step: completed steps, this one included.
        loss: mean over the samples, before the update, not scaled.
        rate: learning rate used.
        samples: (B,) indices of the training samples, in the order consumed.
        scale: of the loss.
        skipped: a scaled gradient was infinite or NaN: no update, and no tick of the schedule.
    """

    step: int
    loss: float
    rate: float
    samples: Array
    scale: float = 1.0
    skipped: bool = False


class Evaluation(NamedTuple):
    """Loss and accuracy on the held-out samples.

    Attributes:
        loss: mean cross-entropy, in nats.
        accuracy: share that is classified rightly, from 0 to 1.
    """

    loss: float
    accuracy: float


def init_state(config: RunConfig, inputs: int, classes: int) -> RunState:
    """The state before the first step, a function of the configuration and the model's ends alone.

    Args:
        config: the settings.
        inputs: D.
        classes: C.
    """
    weights = generator_from(init_stream(config.seed, "weights"))
    model = network.init_model(weights, inputs, config.hidden, classes, batch_norm=config.batch_norm)
    params = network.parameters(model)
    if config.optimizer == "sgd":
        optimizer: optim.AdamState | optim.SGDState = optim.init_sgd(params, momentum=config.momentum)
    else:
        optimizer = optim.init_adam(params, amsgrad=config.amsgrad)
    return RunState(
        step=0,
        mode="train",
        model=model,
        optimizer=optimizer,
        schedule=optim.init_schedule(
            config.schedule,
            learning_rate=config.learning_rate,
            warmup_steps=config.warmup_steps,
            total_steps=config.total_steps,
        ),
        scaler=init_scaler(init_scale=config.init_scale) if config.scales_loss else {},
        rng=RngState(init_stream(config.seed, "order"), init_stream(config.seed, "dropout")),
        data=Position(0, 0),
        best=Best(float("inf"), 0, copy_tree(model)),
    )


def schema(config: RunConfig, inputs: int, classes: int) -> RunState:
    """What every leaf of a run's state must be: a state with a `Leaf` at each of them.

    Args:
        config: the settings.
        inputs: D.
        classes: C.

    Example:
        >>> flatten(schema(RunConfig(hidden=(16,)), 64, 10))["optimizer/m/layer0.weight"]
        Leaf(kind='float32', shape=(16, 64))
    """
    model: Any = network.model_leaves(inputs, config.hidden, classes, batch_norm=config.batch_norm)
    count, number, text = (_leaf(kind) for kind in ("int", "float", "str"))
    params, stream = network.parameters(model), StreamState(_leaf("uint32", WORDS), count)
    adam = optim.AdamState(count, params, params, params if config.amsgrad else {})
    return RunState(
        step=count,
        mode=text,
        model=model,
        optimizer=optim.SGDState(count, params if config.momentum else {}) if config.optimizer == "sgd" else adam,
        schedule=optim.ScheduleState(count, number),
        scaler=ScalerState(number, count) if config.scales_loss else {},
        rng=RngState(stream, stream),
        data=Position(count, count),
        best=Best(number, count, model),
    )


def _leaf(kind: str, *shape: int) -> Any:
    return Leaf(kind, shape or None)


def init_run(config: RunConfig, data: Dataset) -> Run:
    """Start a run.

    Args:
        config: the settings.
        data: the data set it will train on; the run remembers its fingerprint.

    Returns:
        A run at step 0.

    Raises:
        ValueError: batch normalisation would meet a batch of one sample.
        FloatingPointError: reproducible arithmetic on a processor that flushes subnormal numbers to zero.

    Example:
        >>> from numpy_ref.data import load_data
        >>> run = init_run(RunConfig(hidden=(16,)), load_data("digits"))
        >>> run.state.step, run.state.model["layer0.weight"].shape
        (0, (16, 64))
    """
    check_run(config, data)
    state = init_state(config, data.inputs.shape[1], data.classes)
    return Run(config, state, uuid.uuid4().hex, data.fingerprint)


def snapshot(run: Run, *, into: RunState | None = None) -> RunState:
    """The run's state, independent of it: what a checkpoint holds and a comparison compares.

    Args:
        run: left as it is.
        into: an earlier snapshot that is no longer needed, whose arrays are used again.

    Example:
        >>> from numpy_ref.data import load_data
        >>> digits = load_data("digits")
        >>> run = init_run(RunConfig(hidden=(16,)), digits)
        >>> before = snapshot(run)
        >>> run = train_n_steps(run, digits, 1)
        >>> before.step, snapshot(run).step
        (0, 1)
    """
    return copy_tree(run.state, into)


def restore(config: RunConfig, state: RunState, *, run_id: str, fingerprint: str) -> Run:
    """A run that goes on from a state, which it copies; the inverse of `snapshot`.

    Args:
        config: the settings that the state was made with.
        state: every leaf, as `snapshot` gives it; left as it is.
        run_id: of the run that goes on.
        fingerprint: of its data set.

    Raises:
        ValueError: a leaf is missing, of another shape or type than the configuration asks for, or not expected; or the
            mode is neither "train" nor "eval".

    Example:
        >>> from numpy_ref import RunConfig, load_data
        >>> run = init_run(RunConfig(hidden=(16,)), load_data("digits"))
        >>> again = restore(run.config, snapshot(run), run_id=run.run_id, fingerprint=run.fingerprint)
        >>> again.step, again.run_id == run.run_id
        (0, True)
    """
    check_state(config, state)
    return Run(config, copy_tree(state), run_id, fingerprint)


def check_kind(where: str, run: Run) -> None:
    """Refuse a run of another package; all names are the same there."""
    if not hasattr(run, "state"):
        found = f"{type(run).__module__}.{type(run).__qualname__}"
        raise TypeError(f"{where}: expected a run of numpy_ref, found {found}. Each package goes on with its own.")


def check_state(config: RunConfig, state: RunState) -> None:
    """Refuse a state that is not one of this configuration's runs; see `restore`."""
    first, last = (np.shape(state.model.get(f"layer{i}.weight", ())) for i in (0, len(config.hidden)))
    if not len(first) == len(last) == 2:
        raise ValueError(f"restore: model: expected layers with the hidden sizes {config.hidden}, found others")
    missing, faults = structure_faults(flatten(schema(config, first[1], last[0])), flatten(state))
    faults = [f"{path}: missing" for path in missing] + faults
    if faults or (faults := faults_of_mode(state)):
        raise ValueError(f"restore: {'; '.join(faults)}. Give a state of a run of this configuration.")


def faults_of_mode(state: RunState) -> list[str]:
    """A line where the mode is none."""
    return [] if state.mode in ("train", "eval") else [f"mode: expected 'train' or 'eval', found {state.mode!r}"]


def check_run(config: RunConfig, data: Dataset) -> None:
    """Refuse what could not be trained; see `init_run`."""
    if config.arithmetic == "reproducible":
        check_subnormals()
    samples = len(data.labels)
    if config.batch_norm and config.hidden and 1 in (config.batch_size, samples % config.batch_size):
        raise ValueError(
            f"RunConfig.batch_norm: expected at least 2 samples in every batch, found a last batch of 1 ({samples} "
            f"training samples in batches of {config.batch_size}). Choose another batch_size."
        )


def train_n_steps(
    run: Run,
    data: Dataset,
    n: int,
    *,
    on_step: Callable[[StepRecord], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Run:
    """Advance a run by n completed steps, or by fewer where it is asked to stop.

    Args:
        run: left as it is; nothing in the result shares memory with it.
        data: the data set the run was started on.
        n: steps, >= 0: updates, or in float16 updates that an overflow made it skip.
        on_step: called after each step with its record.
        stop: asked before each step; once it says so, no further one is made.

    Returns:
        The run n steps later, or where it was stopped: in either case after a completed step.

    Raises:
        TypeError: it is no run of this package.
        ValueError: `n` is no whole number >= 0, the data set is another one, or the mode is none.
        FloatingPointError: reproducible arithmetic, and subnormal numbers are flushed to zero.

    Mirror:
        `torch_port.train_n_steps`, the same bits under reproducible arithmetic.

    Example:
        >>> from numpy_ref.data import load_data
        >>> digits = load_data("digits")
        >>> run = init_run(RunConfig(hidden=(16,)), digits)
        >>> train_n_steps(train_n_steps(run, digits, 2), digits, 1).state.step
        3
    """
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 0:
        raise ValueError(f"train_n_steps: n: expected a whole number >= 0, found {n!r}")
    check_kind("train_n_steps", run)
    if data.fingerprint != run.fingerprint:
        raise ValueError(
            f"train_n_steps: expected the data set with fingerprint {run.fingerprint}, found {data.fingerprint}. "
            "Give the data that the run was started on."
        )
    if faults := faults_of_mode(run.state):
        raise ValueError(f"train_n_steps: {faults[0]}")
    config, state = run.config, copy_tree(run.state)
    ops = arithmetic_named(config.arithmetic, precision=config.precision)
    if config.arithmetic == "reproducible":
        check_subnormals()  # another library may have begun to flush them since the run was started
    epoch = None  # this epoch's order and the next epoch's state: a function of the state, kept while it holds
    for _ in range(n):
        if stop is not None and stop():
            break
        if epoch is None or state.data.consumed == 0:
            epoch = data_module.epoch_order(state.rng.order, len(data.labels))
        state, record = _train_step(state, config, data, ops, *epoch)
        if state.step % config.evaluate_every == 0:
            loss = _evaluate(state.model, data, ops).loss
            if loss < state.best.loss:
                state = state._replace(best=Best(loss, state.step, copy_tree(state.model)))
        if on_step is not None:
            on_step(record)
    return run._replace(state=state)


def evaluate(run: Run, data: Dataset) -> Evaluation:
    """Loss and accuracy on the held-out samples; draws nothing and changes nothing.

    Args:
        run: left as it is.
        data: the data set the run was started on.

    Returns:
        The mean cross-entropy in nats, and the share that is classified rightly, from 0 to 1.

    Raises:
        ValueError: the data set is another one than the run's.

    Example:
        >>> from numpy_ref.data import load_data
        >>> digits = load_data("digits")
        >>> evaluate(train_n_steps(init_run(RunConfig(hidden=(16,)), digits), digits, 150), digits).accuracy > 0.5
        True
    """
    check_kind("evaluate", run)
    if data.fingerprint != run.fingerprint:
        raise ValueError(f"evaluate: expected the data set {run.fingerprint}, found {data.fingerprint}.")
    ops = arithmetic_named(run.config.arithmetic, precision=run.config.precision)
    return _evaluate(run.state.model, data, ops)


@np.errstate(all="ignore")  # a run that diverges says so by its loss
def _evaluate(model: Arrays, data: Dataset, ops: Arithmetic) -> Evaluation:
    logits, _, _ = network.forward(model, data.test_inputs, ops, training=False)
    loss, _ = network.cross_entropy(logits, data.test_labels, ops, count=len(logits))
    return Evaluation(float(loss), float(np.mean(logits.argmax(axis=1) == data.test_labels)))


@np.errstate(all="ignore")
def _train_step(
    state: RunState, config: RunConfig, data: Dataset, ops: Arithmetic, order: Array, next_order: StreamState
) -> tuple[RunState, StepRecord]:
    """One step on the next window of samples, in micro-batches, which uses up the state: it is written over."""
    window = data_module.window_indices(order, state.data.consumed, config.batch_size * config.accumulation)
    model, training = state.model, state.mode == "train"
    dropout = generator_from(state.rng.dropout) if training and config.dropout else None
    scale = state.scaler.scale if isinstance(state.scaler, ScalerState) else 1.0
    loss: Array = np.zeros((), np.float32)
    grads: Arrays = {}
    for start in range(0, len(window), config.batch_size):
        samples = window[start : start + config.batch_size]
        x = data.inputs[samples]
        if config.noise and training:
            u = draw_noise(config.seed, state.data.epoch, samples, x.shape[1])
            x = x + (2 * u - 1) * np.float32(config.noise)
        masks = network.draw_masks(dropout, config.hidden, len(samples), config.dropout) if dropout else []
        logits, kept, buffers = network.forward(
            model,
            x,
            ops,
            training=training,
            masks=masks,
            dropout=config.dropout,
            segments=config.recompute_segments,
        )
        part, grad = network.cross_entropy(logits, data.labels[samples], ops, count=len(window))
        new = network.backward(model, kept, grad * np.float32(scale), ops)  # from the scaled loss
        loss = loss + part
        grads = {name: grads[name] + new[name] for name in grads} if grads else new
        model = model | buffers
    state = state._replace(model=model)
    skipped = False
    if isinstance(state.scaler, ScalerState):
        skipped = has_inf_or_nan(grads)
        grads = unscale_gradients(grads, scale)
    record = StepRecord(state.step + 1, float(loss), state.schedule.rate, window, scale, skipped)
    if not skipped:
        state = _update(state, config, grads, ops)
    if isinstance(state.scaler, ScalerState):
        state = state._replace(
            scaler=scaler_step(
                state.scaler,
                skipped,
                growth_factor=config.growth_factor,
                backoff_factor=config.backoff_factor,
                growth_interval=config.growth_interval,
            )
        )
    position, order_state = data_module.advance(state.data, state.rng.order, len(data.labels), len(window), next_order)
    rng = RngState(order_state, stream_state(dropout) if dropout else state.rng.dropout)
    return state._replace(step=state.step + 1, rng=rng, data=position), record


def _update(state: RunState, config: RunConfig, grads: Arrays, ops: Arithmetic) -> RunState:
    """The optimizer's step at the schedule's rate, over the state's own arrays, and the schedule's step."""
    params = network.parameters(state.model)
    optimizer: optim.AdamState | optim.SGDState
    if isinstance(state.optimizer, optim.SGDState):
        params, optimizer = optim.sgd_step(
            params,
            state.optimizer,
            grads,
            learning_rate=state.schedule.rate,
            momentum=config.momentum,
            dampening=config.dampening,
            nesterov=config.nesterov,
            weight_decay=config.weight_decay,
            in_place=True,
        )
    else:
        params, optimizer = optim.adam_step(
            params,
            state.optimizer,
            grads,
            ops,
            learning_rate=state.schedule.rate,
            beta1=config.beta1,
            beta2=config.beta2,
            eps=config.eps,
            weight_decay=config.weight_decay,
            decoupled=config.optimizer == "adamw",
            in_place=True,
        )
    schedule = optim.schedule_step(
        state.schedule,
        config.schedule,
        learning_rate=config.learning_rate,
        step_size=config.step_size,
        gamma=config.gamma,
        warmup_steps=config.warmup_steps,
        total_steps=config.total_steps,
    )
    return state._replace(model=state.model | params, optimizer=optimizer, schedule=schedule)
