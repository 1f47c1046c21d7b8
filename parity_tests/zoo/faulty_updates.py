"""Faults of the optimizer, of what refers to it, of the schedule, and of the loss scale."""

from pathlib import Path
from typing import Any

import torch
from torch.optim import lr_scheduler

from parity_tests.zoo.base import STEPS, Accumulating, Loop, Scaling, State, fault, schedule_by


@fault("optimizer", "B01", "Adam's moments and step count are not in the file")
class ForgetsOptimizer(Loop):
    forgets = ("optimizer",)


@fault("optimizer/step", "B04", "the step count is created anew when the state is loaded")
class CountsUpdatesAnew(Loop):
    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        for entry in self.optimizer.state.values():
            entry["step"] = torch.zeros(())


@fault("optimizer/step", "B05", "the step count is kept in bfloat16, which cannot hold 1007")
class CountsInBfloat16(Loop):
    def make_optimizer(self) -> torch.optim.Optimizer:
        optimizer = super().make_optimizer()
        for parameter in self.model.parameters():
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            optimizer.state[parameter] = {"step": torch.tensor(1000.0), **moments}
        return optimizer

    def state_dict(self) -> State:
        state = super().state_dict()
        entries = state["optimizer"]["state"]
        entries.update({key: entry | {"step": entry["step"].bfloat16()} for key, entry in entries.items()})
        return state


@fault("optimizer", "B07", "the saver holds an optimizer that never steps")
class SavesAnotherOptimizer(Loop):
    def __init__(self) -> None:
        super().__init__()
        self.saved = self.optimizer
        self.optimizer = self.make_optimizer()
        self.schedule = self.make_schedule()

    def state_dict(self) -> State:
        return super().state_dict() | {"optimizer": self.saved.state_dict()}


class Momentum(torch.optim.Optimizer):
    """SGD with momentum in float32, whose buffers are made at the first step; an empty loaded state counts as whole."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.ready = False

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.ready = True

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if not self.ready:
                    self.state[parameter]["momentum"] = torch.zeros_like(parameter, dtype=torch.float32)
                buffer = self.state[parameter]["momentum"].mul_(0.9).add_(parameter.grad)
                parameter.sub_(group["lr"] * buffer)
        self.ready = True


@fault("step 10", "B08", "a state saved before the optimizer's first step is taken for a whole one", raises=True)
class TakesEmptyForWhole(Loop):
    parts = (*Loop.parts, "second")

    def __init__(self) -> None:
        super().__init__()
        self.second = Momentum(self.model.last.parameters(), 0.01)

    def update(self, loss: torch.Tensor) -> None:
        super().update(loss)
        if self.steps >= 9:
            self.second.step()


@fault("optimizer/exp_avg optimizer/exp_avg_sq optimizer/step", "B10", "the moments of a layer frozen at the save")
class DropsFrozenMoments(Loop):
    def freeze(self) -> None:
        for parameter in self.model.first.parameters():
            parameter.requires_grad_(not 5 <= self.steps < 10)

    def step(self) -> Any:
        self.freeze()
        return super().step()

    def state_dict(self) -> State:
        state = super().state_dict()
        entries = state["optimizer"]["state"]
        for key, parameter in enumerate(self.model.parameters()):
            if not parameter.requires_grad:
                entries.pop(key)
        return state

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.freeze()


@fault("optimizer", "B11", "the optimizer's file was not written beside the model's, and the loader does not mind")
class MixesTwoFiles(Loop):
    def save(self, path: str) -> None:
        state = self.state_dict()
        moments = state.pop("optimizer")
        torch.save(state, path)
        if self.steps % 5 == 0:  # the process ended between the two files
            torch.save(moments, f"{path}.optimizer")

    def load(self, path: str) -> None:
        state = torch.load(path, weights_only=True)
        if Path(f"{path}.optimizer").exists():
            state["optimizer"] = torch.load(f"{path}.optimizer", weights_only=True)
        self.load_state_dict(state)


@fault("best", "B14", "the best weights are the live ones, and a copy after the resume")
class KeepsBestByReference(Loop):
    values = (*Loop.values, "best_loss", "best")

    def __init__(self) -> None:
        super().__init__()
        self.best_loss, self.best = float("inf"), self.model.state_dict()

    def update(self, loss: torch.Tensor) -> None:
        super().update(loss)
        if loss.item() < self.best_loss:
            self.best_loss, self.best = loss.item(), self.model.state_dict()


@fault("optimizer/lr", "B19", "the rate is stored as a float32 tensor, which is not 0.01")
class RoundsTheRate(Loop):
    def state_dict(self) -> State:
        state = super().state_dict()
        for group in state["optimizer"]["param_groups"]:
            group["lr"] = torch.tensor(group["lr"])
        return state

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        for group in self.optimizer.param_groups:
            group["lr"] = float(group["lr"])


class RebuildsSchedule(Loop):
    """Makes the schedule after the optimizer was loaded, which sets the rate; then loads the schedule's own state."""

    def load_state_dict(self, state: State) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule = self.make_schedule()
        super().load_state_dict({name: value for name, value in state.items() if name != "optimizer"})


@fault("optimizer/lr", "B22", "the schedule is built after the optimizer was loaded, and shrinks its rate for good")
class WarmsUpAgain(RebuildsSchedule):
    def make_schedule(self) -> Any:
        return lr_scheduler.LinearLR(self.optimizer, 0.1, total_iters=20)


@fault("optimizer/lr", "B23", "the schedule is built after the optimizer was loaded: one step at another rate")
class OneStepAtAnotherRate(RebuildsSchedule):
    make_schedule = lambda self: schedule_by(lambda tick: 1 / (1 + tick))(self.optimizer)  # noqa: E731


@fault("schedule", "B25", "a cosine is re-created with the last epoch, on top of a rate that has already moved")
class RecreatesCosine(Loop):
    forgets = ("schedule",)

    def make_schedule(self) -> Any:
        return lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.schedule = lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS, last_epoch=self.steps)


@fault("optimizer/lr schedule.optimizer", "B26", "the schedule moves the optimizer that was replaced by the load")
class SchedulesTheOldOptimizer(Loop):
    def load_state_dict(self, state: State) -> None:
        self.optimizer = self.make_optimizer()
        super().load_state_dict(state)


@fault("schedule.last_epoch", "B28", "the schedule counts steps and is set to the epoch: warm-up again", at=12)
class SetsTicksToEpoch(Loop):
    make_schedule = lambda self: schedule_by(lambda tick: min(1.0, (tick + 1) / 15))(self.optimizer)  # noqa: E731

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.schedule.last_epoch = self.order.epoch


@fault("schedule.T_max", "B29", "the schedule's length is the steps that remain, not all steps")
class TakesRemainingForTotal(Loop):
    def make_schedule(self) -> Any:
        return lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.schedule.T_max = STEPS - self.steps


@fault("schedule.best schedule.num_bad_epochs", "B31", "a hook at the start of training resets best and patience")
class WaitsAgain(Loop):
    def make_schedule(self) -> Any:
        return lr_scheduler.ReduceLROnPlateau(self.optimizer, factor=0.5, patience=1)

    def update(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step(loss.item())

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.schedule._reset()


@fault("best best_loss", "B31", "the best loss and its weights are not in the file")
class ForgetsBest(Loop):
    def __init__(self) -> None:
        super().__init__()
        self.best_loss, self.best = float("inf"), {}

    def update(self, loss: torch.Tensor) -> None:
        super().update(loss)
        if loss.item() < self.best_loss:
            weights = self.model.state_dict()
            self.best_loss, self.best = loss.item(), {name: value.clone() for name, value in weights.items()}


@fault("schedule.last_epoch", "B32", "the schedule is replayed by micro-batch, and moves by update")
class ReplaysByMicroBatch(Accumulating):
    make_schedule = lambda self: schedule_by(lambda tick: 0.9**tick)(self.optimizer)  # noqa: E731

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.schedule.last_epoch = self.steps


@fault("scaler", "B34", "the scaler is made in the first step, after the load")
class MakesScalerLate(Scaling):
    def make_scaler(self) -> Any:
        return None

    def update(self, loss: torch.Tensor) -> None:
        self.scaler = self.scaler or super().make_scaler()
        super().update(loss)

    def load_state_dict(self, state: State) -> None:
        scale = state.pop("scaler")
        super().load_state_dict(state)
        if self.scaler:
            self.scaler.load_state_dict(scale)


@fault("scaler", "B35", "the load runs a hidden step, which moves the scale")
class StepsWhileLoading(Scaling):
    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        weight = torch.zeros(1, requires_grad=True)
        self.scaler.scale(weight.sum()).backward()
        self.scaler.step(torch.optim.SGD([weight]))
        self.scaler.update()


@fault("step 8", "B37", "gradients are unscaled before the scaler has a scale", raises=True)
class UnscalesFirst(Scaling):
    """Applies the gradients of the step before, and only then computes new ones."""

    values = (*Scaling.values, "gradients")
    gradients = Accumulating.gradients

    def update(self, loss: torch.Tensor) -> None:
        if self.steps:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            self.schedule.step()
        self.scaler.scale(loss).backward()


@fault("scaler", "B38", "the scaler is made at the start of an epoch, and the load starts one")
class MakesScalerEachEpoch(Scaling):
    def begin_epoch(self) -> None:
        self.scaler = self.make_scaler()

    def step(self) -> Any:
        if self.steps % 5 == 0:
            self.begin_epoch()
        return super().step()

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.begin_epoch()
