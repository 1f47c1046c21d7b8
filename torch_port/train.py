"""A run of live PyTorch objects, its whole state as the reference's `RunState`, and the loop that advances it.

What differs from `numpy_ref.train` is ownership: there a run is data and is left alone; here `train_n_steps` advances
modules, optimizers and generators in place, and the run handed in is used up. `snapshot` takes the state out as
independent NumPy arrays, `restore` builds live objects from it. All draws are made on the CPU, whatever the device.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler

from numpy_ref import train as reference
from numpy_ref.config import RunConfig
from numpy_ref.data import Dataset, Position
from numpy_ref.optim import (
    AdamState,
    ScalerState,
    ScheduleState,
    SGDState,
    decode_scaler,
    encode_scaler,
    faults_of_scaler,
    init_scaler,
)
from numpy_ref.train import Best, Evaluation, RngState, RunState, StepRecord
from numpy_ref.tree import copy_tree
from numpy_ref.types import Array
from torch_port import model as network
from torch_port import optim
from torch_port.arithmetic.operations import Arithmetic, arithmetic_named, check_subnormals
from torch_port.data import Batch, PositionedSampler, Samples, init_loader
from torch_port.rng import StreamState, generator_from, init_stream, stream_state

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


class Run:
    """A run: what was decided (`config`), the live objects that training changes, and who it is.

    Attributes:
        config: the settings.
        run_id: 32 hexadecimal digits, drawn from the system when the run was started.
        fingerprint: of the data set.
        step: completed steps, skipped updates included.
        model: the module, in training or evaluation mode, on the run's device.
        optimizer: over the module's parameters.
        schedule: sets the optimizer's rate.
        scaler: PyTorch's own, of losses; disabled unless the run computes in float16.
        order: the order's stream at the start of this epoch.
        position: epoch, and samples consumed in it.
        dropout: the generator of the masks, on the CPU.
        best: the best weights so far.
        workers: processes that load ahead; no part of the state, since no count changes anything.

    Once `train_n_steps` has advanced it, only the first three are left, and the others raise RuntimeError. A deep copy,
    or a pickled run, is one restored from a snapshot.
    """

    model: network.MLP
    optimizer: torch.optim.Optimizer
    schedule: LRScheduler
    scaler: GradScaler
    order: StreamState
    position: Position
    dropout: torch.Generator
    best: Best
    step: int
    workers: int

    def __init__(self, config: RunConfig, run_id: str, fingerprint: str, **live: Any) -> None:
        self.config, self.run_id, self.fingerprint = config, run_id, fingerprint
        self.__dict__.update(live)

    def __getattr__(self, name: str) -> Any:  # reached only when the attribute is not there
        if name in Run.__annotations__:
            raise RuntimeError(
                f"run.{name}: expected a live run, found one that {self.__dict__.get('gone', 'is empty')}"
            )
        raise AttributeError(f"'Run' object has no attribute {name!r}")

    def __repr__(self) -> str:
        where = f"step {self.step}, {self.device}" if "step" in self.__dict__ else "no longer live"
        return f"Run({self.run_id[:8]}, {where})"

    def __deepcopy__(self, memo: dict[int, Any]) -> "Run":
        return _rebuilt(self.config, snapshot(self), self.run_id, self.fingerprint, str(self.device))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.config, snapshot(self), self.run_id, self.fingerprint, str(self.device))

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        return next(self.model.parameters()).device

    def hand_over(self) -> "Run":
        """A run with the live objects, which this one has no longer."""
        live = {name: getattr(self, name) for name in Run.__annotations__}
        for name in live:
            delattr(self, name)
        self.gone = "train_n_steps has advanced. Use the run that it returned; for a copy, restore a snapshot."
        return Run(self.config, self.run_id, self.fingerprint, **live)

    def take_back(self, run: "Run") -> None:
        """Be what `run` is, which it then is no longer."""
        self.__dict__.update(run.hand_over().__dict__)


def init_state(config: RunConfig, inputs: int, classes: int) -> RunState:
    """The state before the first step, a function of the configuration and the model's ends alone."""
    return snapshot(_fresh(config, inputs, classes, "", ""))


def init_run(config: RunConfig, data: Dataset) -> Run:
    """Start a run, on torch's default device.

    Example:
        >>> from numpy_ref.data import load_data
        >>> run = init_run(RunConfig(hidden=(16,)), load_data("digits"))
        >>> run.step, run.model.layer0
        (0, Linear(in_features=64, out_features=16, bias=True))
    """
    check_run(config, data)
    return _fresh(config, data.inputs.shape[1], data.classes, uuid.uuid4().hex, data.fingerprint)


def snapshot(run: Run, *, into: RunState | None = None) -> RunState:
    """The run's state as NumPy arrays, independent of it: what a checkpoint holds and a comparison compares.

    Raises:
        TypeError: it is no run of this package.
        ValueError: the live objects have settings that are not the configuration's, so that a resume would go on
            otherwise; or some modules are in training and some in evaluation mode; or the parameters' counts of updates
            differ. All of it is named.

    Example:
        >>> from numpy_ref.data import load_data
        >>> digits = load_data("digits")
        >>> run = init_run(RunConfig(hidden=(16,)), digits)
        >>> before = snapshot(run)
        >>> run = train_n_steps(run, digits, 1)
        >>> before.step, snapshot(run).step
        (0, 1)
    """
    return copy_tree(live_state(run), into)


def live_state(run: Run) -> RunState:
    """`snapshot` without a copy: on the CPU its arrays are the live tensors' own memory, to be read at once."""
    _check_live(run)
    named = dict(run.model.named_parameters())
    state = {name: run.optimizer.state.get(p, {}) for name, p in named.items()}
    t = max((int(entry.get("step", 0)) for entry in state.values()), default=0)

    def moments(key: str) -> dict[str, Array]:
        return {
            name: _array(state[name][key] if key in state[name] else torch.zeros_like(p)) for name, p in named.items()
        }

    if isinstance(run.optimizer, optim.SGD):
        optimizer: AdamState | SGDState = SGDState(t, moments("momentum_buffer") if run.config.momentum else {})
    else:
        m, v, v_max = (
            moments(key) if kind != "v_max" or run.config.amsgrad else {} for kind, key in optim.ADAM_MOMENTS.items()
        )
        optimizer = AdamState(t, m, v, v_max)
    return RunState(
        step=run.step,
        mode="train" if run.model.training else "eval",
        model=_arrays(run.model),
        optimizer=optimizer,
        schedule=ScheduleState(run.schedule.last_epoch, float(run.optimizer.param_groups[0]["lr"])),
        scaler=decode_scaler(run.scaler.state_dict())[0] if run.scaler.is_enabled() else {},
        rng=RngState(run.order, stream_state(run.dropout)),
        data=run.position,
        best=run.best,
    )


def restore(config: RunConfig, state: RunState, *, run_id: str, fingerprint: str) -> Run:
    """A run that goes on from a state, which it copies, on torch's default device; the inverse of `snapshot`.

    Example:
        >>> from numpy_ref import RunConfig, load_data
        >>> run = init_run(RunConfig(hidden=(16,)), load_data("digits"))
        >>> again = restore(run.config, snapshot(run), run_id=run.run_id, fingerprint=run.fingerprint)
        >>> again.step, again.run_id == run.run_id
        (0, True)
    """
    reference.check_state(config, state)
    return live_run(config, state, run_id=run_id, fingerprint=fingerprint)


def live_run(config: RunConfig, state: RunState, *, run_id: str, fingerprint: str) -> Run:
    """`restore` of a state that has been checked."""
    inputs, classes = state.model["layer0.weight"].shape[1], len(state.model[f"layer{len(config.hidden)}.bias"])
    with torch.inference_mode(False):  # what is made within it could never be trained
        run = _around(config, network.MLP(inputs, config.hidden, classes, **_settings(config)), run_id, fingerprint)
        run.model.load_state_dict({name: _tensor(array) for name, array in state.model.items()})
        run.model.train(state.mode == "train")
        for name, p in run.model.named_parameters():
            run.optimizer.state[p] = _optimizer_entry(state.optimizer, name, p)
    run.optimizer.param_groups[0]["lr"] = state.schedule.rate
    tick, rate = state.schedule
    run.schedule.load_state_dict({"last_epoch": tick, "_step_count": tick + 1, "_last_lr": [rate]})
    if isinstance(state.scaler, ScalerState):
        run.scaler.load_state_dict(encode_scaler(state.scaler, **_growth(config)))
    run.order, run.position, run.dropout = copy_tree(state.rng.order), state.data, generator_from(state.rng.dropout)
    run.step, run.best = state.step, copy_tree(state.best)
    return run


def check_run(config: RunConfig, data: Dataset) -> None:
    """Refuse what could not be trained; see `init_run`."""
    if config.arithmetic == "reproducible":
        check_subnormals()
    reference.check_run(config, data)


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
        run: used up: its live objects are the result's. Where an argument is refused or `on_step` raises, it keeps
            them, at its last completed step; an error within a step leaves them half-way, and ends the run.
        data: the data set the run was started on.
        n: steps, >= 0: updates, or in float16 updates that an overflow made it skip.
        on_step: called after each step with its record.
        stop: asked before each step; once it says so, no further one is made.

    Mirror:
        `numpy_ref.train_n_steps`, the same bits under reproducible arithmetic.

    Example:
        >>> from numpy_ref.data import load_data
        >>> digits = load_data("digits")
        >>> run = init_run(RunConfig(hidden=(16,)), digits)
        >>> train_n_steps(train_n_steps(run, digits, 2), digits, 1).step
        3
    """
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 0:
        raise ValueError(f"train_n_steps: n: expected a whole number >= 0, found {n!r}")
    _check_kind("train_n_steps", run)
    if data.fingerprint != run.fingerprint:
        raise ValueError(
            f"train_n_steps: expected the data set with fingerprint {run.fingerprint}, found {data.fingerprint}. "
            "Give the data that the run was started on."
        )
    if run.config.arithmetic == "reproducible":
        check_subnormals()
    given, run, whole = run, run.hand_over(), True
    sampler = PositionedSampler(len(data.labels), run.config.batch_size, run.order, run.position)
    batches = None  # of the rest of this epoch
    try:
        with _own_modes(run.device):
            for _ in range(n):
                if stop is not None and stop():
                    break
                if batches is None or run.position.consumed == 0:
                    batches = _batches(run, data, sampler)
                whole = False
                record = _train_step(run, batches, sampler)
                if run.step % run.config.evaluate_every == 0:
                    loss = evaluate(run, data).loss
                    if loss < run.best.loss:
                        run.best = Best(loss, run.step, copy_tree(_arrays(run.model)))
                whole = True
                if on_step is not None:
                    on_step(record)
    except BaseException:
        given.gone = "an error stopped within an update, half-way. Resume from a checkpoint."
        if whole:
            given.take_back(run)
        raise
    return run


def evaluate(run: Run, data: Dataset) -> Evaluation:
    """Loss and accuracy on the held-out samples; draws nothing, changes nothing, and leaves the mode as it is.

    Example:
        >>> from numpy_ref.data import load_data
        >>> digits = load_data("digits")
        >>> evaluate(train_n_steps(init_run(RunConfig(hidden=(16,)), digits), digits, 150), digits).accuracy > 0.5
        True
    """
    _check_kind("evaluate", run)
    if data.fingerprint != run.fingerprint:
        raise ValueError(f"evaluate: expected the data set {run.fingerprint}, found {data.fingerprint}.")
    x, labels = (torch.tensor(array, device=run.device) for array in (data.test_inputs, data.test_labels))
    modes = {module: module.training for module in run.model.modules()}
    try:
        with _own_modes(run.device), torch.no_grad():
            logits = run.model.eval()(x)
            loss = network.cross_entropy(logits, labels, _ops(run.config), count=len(labels))
    finally:
        for module, training in modes.items():
            module.training = training
    return Evaluation(float(loss), float(np.mean(_array(logits).argmax(axis=1) == data.test_labels)))


@contextmanager
def _own_modes(device: torch.device) -> Iterator[None]:
    """Gradients whatever mode the caller is in, and no autocast, which would change the bits."""
    available = torch.amp.is_autocast_available(device.type)
    no_autocast = torch.autocast(device.type, enabled=False) if available else nullcontext()
    with torch.inference_mode(False), torch.enable_grad(), no_autocast:
        yield


def _batches(run: Run, data: Dataset, sampler: PositionedSampler) -> Iterator[Batch]:
    """The micro-batches of the rest of the epoch."""
    noise = run.config.noise if run.model.training else 0.0
    loader = init_loader(Samples(data, seed=run.config.seed, noise=noise), sampler, workers=run.workers)
    with torch.device(
        "cpu"
    ):  # making an iterator draws the workers' seed on the default device, from a CPU's generator
        return iter(loader)


def _train_step(run: Run, batches: Iterator[Batch], sampler: PositionedSampler) -> StepRecord:
    """One step on the next window of samples, in micro-batches."""
    config, model, scaler, device, ops = run.config, run.model, run.scaler, run.device, _ops(run.config)
    count = min(config.batch_size * config.accumulation, sampler.samples - run.position.consumed)
    loss, used = torch.zeros((), dtype=torch.float32, device=device), []
    run.optimizer.zero_grad()
    for _ in range(-(-count // config.batch_size)):
        x, labels, samples = next(batches)
        dropout = config.dropout if model.training else 0.0
        masks = network.draw_masks(run.dropout, config.hidden, len(samples), dropout, device=device)
        logits = model(x.to(device), masks, segments=config.recompute_segments)
        part = network.cross_entropy(logits, labels.to(device), ops, count=count)
        scaler.scale(part).backward()  # type: ignore[no-untyped-call]
        loss = loss + part.detach()
        used.append(samples)
    rate, scale = float(run.optimizer.param_groups[0]["lr"]), scaler.get_scale()
    skipped = scaler.is_enabled() and optim.has_inf_or_nan(p.grad for p in model.parameters() if p.grad is not None)
    scaler.step(run.optimizer)
    scaler.update()
    if not skipped:
        run.schedule.step()
    sampler.advance(count)
    run.order, run.position, run.step = sampler.order, sampler.position, run.step + 1
    return StepRecord(run.step, float(loss), rate, torch.cat(used).numpy(), scale, skipped)


def _fresh(config: RunConfig, inputs: int, classes: int, run_id: str, fingerprint: str) -> Run:
    """A run at step 0 with initial weights."""
    weights = generator_from(init_stream(config.seed, "weights"))
    with torch.inference_mode(False):  # what is made within it could never be trained
        model = network.init_model(weights, inputs, config.hidden, classes, **_settings(config))
        return _around(config, model, run_id, fingerprint)


def _rebuilt(config: RunConfig, state: RunState, run_id: str, fingerprint: str, device: str) -> Run:
    """A copy of a run, from its snapshot."""
    with torch.device(device):
        return live_run(config, state, run_id=run_id, fingerprint=fingerprint)


def _around(config: RunConfig, model: network.MLP, run_id: str, fingerprint: str) -> Run:
    """A run at step 0 with this model."""
    optimizer = _optimizer(config, model)
    return Run(
        config,
        run_id,
        fingerprint,
        step=0,
        model=model,
        optimizer=optimizer,
        schedule=_schedule(config, optimizer),
        scaler=_scaler(config, next(model.parameters()).device),
        order=init_stream(config.seed, "order"),
        position=Position(0, 0),
        dropout=generator_from(init_stream(config.seed, "dropout")),
        best=Best(float("inf"), 0, copy_tree(_arrays(model))),
        workers=0,
    )


def _settings(config: RunConfig) -> dict[str, Any]:
    """What `MLP` takes from the configuration beside its sizes."""
    return {
        "batch_norm": config.batch_norm,
        "dropout": config.dropout,
        "ops": _ops(config),
    }


def _ops(config: RunConfig) -> Arithmetic:
    """The configuration's arithmetic."""
    return arithmetic_named(config.arithmetic, precision=config.precision)


def _optimizer(config: RunConfig, model: network.MLP) -> torch.optim.Optimizer:
    """The configuration's optimizer over the model's parameters."""
    common: dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    if config.optimizer == "sgd":
        momentum: dict[str, Any] = {
            "momentum": config.momentum,
            "dampening": config.dampening,
            "nesterov": config.nesterov,
        }
        return optim.SGD(model.parameters(), **momentum, **common)
    adam = optim.AdamW if config.optimizer == "adamw" else optim.Adam
    moments: dict[str, Any] = {"betas": (config.beta1, config.beta2), "eps": config.eps, "amsgrad": config.amsgrad}
    return adam(model.parameters(), **moments, **common, ops=_ops(config))


def _schedule(config: RunConfig, optimizer: torch.optim.Optimizer) -> LRScheduler:
    """The configuration's schedule over an optimizer."""
    return optim.init_schedule(
        optimizer,
        config.schedule,
        step_size=config.step_size,
        gamma=config.gamma,
        warmup_steps=config.warmup_steps,
        total_steps=config.total_steps,
    )


def _scaler(config: RunConfig, device: torch.device) -> GradScaler:
    """The configuration's scaler of losses; the stock one would keep the scale as float64 until its first use."""
    scale = init_scaler(init_scale=config.init_scale).scale
    return torch.amp.GradScaler(device.type, init_scale=scale, enabled=config.scales_loss, **_growth(config))


def _growth(config: RunConfig) -> dict[str, Any]:
    """How the scale moves."""
    return {name: getattr(config, name) for name in ("growth_factor", "backoff_factor", "growth_interval")}


def _check_kind(where: str, run: Run) -> None:
    if not isinstance(run, Run):
        raise TypeError(
            f"{where}: expected a run of torch_port, found {_kind(run)}. Each package goes on with its own."
        )


def _check_live(run: Run) -> None:
    """Refuse live objects that would not come back from the configuration and the state; see `snapshot`."""
    _check_kind("snapshot", run)
    config, model, faults = run.config, run.model, []
    if type(model) is not network.MLP:
        found = type(model).__name__
        raise ValueError(f"snapshot: model: expected MLP, found {found}. To compile it use run.model.compile().")
    training, ops = model.training, _ops(config)
    mode = "training" if training else "evaluation"
    for name, module in model.named_modules():
        if module.training != training:
            faults.append(f"mode: expected every module in {mode} mode as the model is, found {name} in the other")
        other: Arithmetic = getattr(module, "ops", ops)
        if other != ops:
            kinds = [f"{x.name} arithmetic in {x.precision}" for x in (ops, other)]
            faults.append(f"model: {f'{name}.ops'.lstrip('.')}: expected {kinds[0]}, found {kinds[1]}")
    if model.scale != 1 / (1 - config.dropout):
        faults.append(f"model: scale: expected {1 / (1 - config.dropout)!r} for the dropout, found {model.scale!r}")
    optimizer = _optimizer(config, model)
    if type(run.optimizer) is not type(optimizer) or len(run.optimizer.param_groups) != 1:
        raise ValueError(
            f"snapshot: optimizer: expected {_kind(optimizer)} with one group, found {_kind(run.optimizer)} with "
            f"{len(run.optimizer.param_groups)}. {LIVE_ADVICE}"
        )
    faults += _apart("optimizer", *(_settings_of(each) for each in (optimizer, run.optimizer)))
    if list(map(id, run.optimizer.param_groups[0]["params"])) != list(map(id, model.parameters())):
        faults.append("optimizer: expected the model's parameters, found others")
    counts = {int(run.optimizer.state.get(p, {}).get("step", 0)) for p in model.parameters()}
    if len(counts) > 1:
        faults.append(f"optimizer: step: expected one number for all parameters, found {sorted(counts)}")
    schedule = _schedule(config, optimizer)
    if type(run.schedule) is not type(schedule):
        faults.append(f"schedule: expected {_kind(schedule)}, found {_kind(run.schedule)}")
    else:
        moving = ("last_epoch", "_step_count", "_last_lr", "_is_initial", "_get_lr_called_within_step")
        settings = [{k: v for k, v in x.state_dict().items() if k not in moving} for x in (schedule, run.schedule)]
        faults += _apart("schedule", *settings)
    faults += _scaler_faults(config, run.scaler)
    if faults:
        raise ValueError(f"snapshot: {'; '.join(faults)}. {LIVE_ADVICE}")


LIVE_ADVICE = "What is no part of the state must be as RunConfig has it, or a resume would go on otherwise."


def _scaler_faults(config: RunConfig, scaler: GradScaler) -> list[str]:
    """What differs from the configuration's scaler, or is within a step."""
    if type(scaler) is not GradScaler:
        return [f"scaler: expected {_kind(_scaler(config, torch.device('cpu')))}, found {_kind(scaler)}"]
    if scaler.is_enabled() != config.scales_loss:
        return [f"scaler: expected it to be {'enabled' if config.scales_loss else 'disabled'} for {config.precision}"]
    state = scaler.state_dict()
    faults = faults_of_scaler(ScalerState(state["scale"], state["_growth_tracker"])) if state else []
    return faults + _apart(
        "scaler",
        *({k: v for k, v in x.items() if k in _growth(config)} for x in (_growth(config) if state else {}, state)),
    )


def _apart(where: str, expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """A line for each setting that differs."""
    return [
        f"{where}: {name}: expected {expected.get(name)!r}, found {found.get(name)!r}"
        for name in sorted(expected.keys() | found.keys())
        if expected.get(name) != found.get(name)
    ]


def _settings_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What an optimizer is told and does not change."""
    group = {k: v for k, v in optimizer.param_groups[0].items() if k not in ("params", "lr", "initial_lr")}
    return group | {"ops": getattr(optimizer, "ops", None)}


def _kind(x: object) -> str:
    return f"{type(x).__module__}.{type(x).__qualname__}"


def _optimizer_entry(state: AdamState | SGDState, name: str, p: torch.nn.Parameter) -> dict[str, torch.Tensor]:
    """What torch's optimizers keep for one parameter."""
    keys = optim.SGD_MOMENTS if isinstance(state, SGDState) else optim.ADAM_MOMENTS
    moments = {key: getattr(state, kind) for kind, key in keys.items()}
    if state.t == 0 and not any(array.any() for arrays in moments.values() for array in arrays.values()):
        return {}  # as before the first update; a stock SGD would take zeros for a buffer
    entry = {"step": torch.tensor(state.t, dtype=torch.float64, device="cpu")}
    return entry | {key: _tensor(arrays[name]).to(p.device) for key, arrays in moments.items() if arrays}


def _tensor(array: Array) -> torch.Tensor:
    """An independent tensor on the CPU, of an array in any memory order."""
    return torch.from_numpy(np.array(array, order="C"))


def _array(tensor: torch.Tensor) -> Array:
    """A NumPy array; of a tensor on the CPU, its own memory."""
    array: Array = tensor.detach().cpu().numpy()
    return array


def _arrays(model: torch.nn.Module) -> dict[str, Array]:
    """The weights and buffers by name, as `_array` has them."""
    return {name: _array(tensor) for name, tensor in model.state_dict().items()}
