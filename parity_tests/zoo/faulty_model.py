"""Faults of gradients, averages, modes, names, dtypes, counters, logs, and of state that nobody thought of."""

import copy
from typing import Any

import torch
from torch import nn

from parity_tests.zoo.base import BATCH, SAMPLES, Accumulating, Averaging, Dropping, Loop, Net, State, X, Y, fault


@fault("model*.grad", "B79", "the gradient of the open window is not in the file", at=6)
class DropsTheOpenWindow(Accumulating):
    forgets = ("gradients",)


@fault("pending", "B80", "the window's count starts at 0 though the window is open", at=10)
class CountsTheWindowAnew(Accumulating):
    forgets = ("pending",)


@fault("model", "B82", "only the average was saved, and the weights are taken from it")
class SavesTheAverageOnly(Averaging):
    def state_dict(self) -> State:
        return super().state_dict() | {"model": self.average.state_dict()}


@fault("average", "B127", "the load takes the average from the weights")
class TakesTheAverageFromTheWeights(Averaging):
    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.average.load_state_dict(state["model"])


@fault("model average", "B83", "the file is written while the average stands in the model", at=8)
class SavesInTheSwap(Averaging):
    def swap(self) -> None:
        kept = copy.deepcopy(self.model.state_dict())
        self.model.load_state_dict(self.average.state_dict())
        self.average.load_state_dict(kept)

    def state_dict(self) -> State:
        self.swap()
        state = copy.deepcopy(super().state_dict())
        self.swap()
        return state


@fault("model*.training", "B85", "the load leaves the net in eval: no dropout")
class StaysInEval(Dropping):
    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.model.eval()


@fault("model.norm.training model.training", "B86", "the load sets a frozen normalisation to train")
class ThawsFrozenNorm(Loop):
    norm = True

    def __init__(self) -> None:
        super().__init__()
        self.model.norm.eval()

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.model.train()


@fault("model.norm.running* model.norm.num_batches_tracked model.buffers", "B86", "running statistics are not saved")
class SavesParametersOnly(Loop):
    norm = True

    def state_dict(self) -> State:
        return super().state_dict() | {"model": {name: value.detach() for name, value in self.model.named_parameters()}}

    def load_state_dict(self, state: State) -> None:
        self.model.load_state_dict(state.pop("model"), strict=False)
        super().load_state_dict(state)


class Deep(nn.Module):
    """Six equal layers, so that a state fits any of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({f"layer{index}": nn.Linear(4, 4) for index in range(6)})
        self.last = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            x = x + torch.tanh(layer(x))
        return self.last(x)


@fault("optimizer", "B88", "parameter groups in the order of a set of names: another one with another hash seed")
class GroupsFromASet(Loop):
    make_model = lambda self: Deep()  # noqa: E731

    def make_optimizer(self) -> torch.optim.Optimizer:
        names = set(self.model.layers)
        groups: list[Any] = [{"params": list(self.model.layers[name].parameters())} for name in names]
        return torch.optim.Adam([*groups, {"params": self.model.last.parameters()}], lr=0.01)


@fault("load", "B89", "a group added in training is not there when the optimizer is loaded", raises=True)
class UnfreezesAfterLoading(Loop):
    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.last.parameters(), lr=0.01, momentum=0.9)

    def make_schedule(self) -> Any:
        return self  # none

    parts = ("model", "optimizer", "order")

    def update(self, loss: torch.Tensor) -> None:
        if self.steps == 5:
            self.optimizer.add_param_group({"params": self.model.first.parameters(), "lr": 0.001})
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class Tied(Net):
    """The first layer's weight is the middle one's too."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = nn.Linear(4, 8)
        self.middle.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)) + torch.relu(self.middle(-x)))


@fault("model.first.weight model", "B91", "both names of a tied weight are dropped from the file, and none is missed")
class DropsTheTiedWeight(Loop):
    make_model = lambda self: Tied()  # noqa: E731

    def state_dict(self) -> State:
        state = super().state_dict()
        kept = {name: value for name, value in state["model"].items() if name not in ("first.weight", "middle.weight")}
        return state | {"model": kept}

    def load_state_dict(self, state: State) -> None:
        self.model.load_state_dict(state.pop("model"), strict=False)
        super().load_state_dict(state)


@fault("model", "B92", "the whole checkpoint is passed as weights without strictness: no key matches")
class MatchesNothing(Loop):
    def load_state_dict(self, state: State) -> None:
        self.model.load_state_dict(state, strict=False)
        super().load_state_dict({name: value for name, value in state.items() if name != "model"})


@fault("model.last model", "B92", "one layer was renamed, and the load is not strict")
class RenamesALayer(Loop):
    def load_state_dict(self, state: State) -> None:
        weights = {name.replace("last", "head"): value for name, value in state.pop("model").items()}
        self.model.load_state_dict(weights, strict=False)
        super().load_state_dict(state)


@fault("optimizer", "B94", "moments are stored by the parameter's address")
class KeysByAddress(Loop):
    def state_dict(self) -> State:
        state = super().state_dict()
        return state | {"optimizer": {id(parameter): entry for parameter, entry in self.optimizer.state.items()}}

    def load_state_dict(self, state: State) -> None:
        entries = state.pop("optimizer")
        for parameter in self.model.parameters():
            if id(parameter) in entries:
                self.optimizer.state[parameter] = entries[id(parameter)]
        super().load_state_dict(state)


class WideMomentum(torch.optim.Optimizer):
    """SGD for bfloat16 weights, with momentum in float32."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter, dtype=torch.float32)
                buffer = state["momentum"].mul_(0.9).add_(parameter.grad.float())
                parameter.copy_(parameter.float() - group["lr"] * buffer)


@fault("optimizer/momentum", "B95", "moments in float32 are cast to the weights' bfloat16 by the load")
class CastsTheMoments(Loop):
    make_model = lambda self: Net().bfloat16()  # noqa: E731
    make_optimizer = lambda self: WideMomentum(self.model.parameters(), 0.05)  # noqa: E731

    def inputs(self, ids: torch.Tensor) -> torch.Tensor:
        return X[ids].bfloat16()


@fault("optimizer/step", "B97", "the step count, float64 in the run and a number in the file, comes back as float32")
class NarrowsTheStepCount(Loop):
    def step(self) -> Any:
        torch.set_default_dtype(torch.float64)
        try:
            return super().step()
        finally:
            torch.set_default_dtype(torch.float32)

    def state_dict(self) -> State:
        state = super().state_dict()
        entries = state["optimizer"]["state"]
        entries.update({key: entry | {"step": float(entry["step"])} for key, entry in entries.items()})
        return state


@fault("model.first.weight model", "B100", "bytes are written in the order of storage and read in the order of indices")
class PermutesAMatrix(Loop):
    def make_model(self) -> nn.Module:
        model = Net()
        model.first.weight = nn.Parameter(model.first.weight.detach().t().contiguous().t())
        return model

    def state_dict(self) -> State:
        state = super().state_dict()
        weight = state["model"]["first.weight"]
        stored = torch.empty(0).set_(weight.untyped_storage(), 0, (weight.numel(),)).clone()
        return state | {"model": state["model"] | {"first.weight": stored.reshape(weight.shape)}}


class Counting(Loop):
    """The learning rate falls with the epoch that the loop counts."""

    values = (*Loop.values, "epoch")

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().loss(x, y) / (1 + self.epoch) ** 2

    def step(self) -> Any:
        loss = super().step()
        self.epoch += self.order.consumed == SAMPLES
        return loss


@fault("epoch", "B157", "the file names the epoch that is over, and the loop starts with it", at=10)
class RepeatsTheEpoch(Counting):
    def state_dict(self) -> State:
        return super().state_dict() | {"epoch": self.epoch - (self.order.consumed == SAMPLES)}


@fault("epoch", "B158", "each load counts an epoch")
class CountsAnEpochAtEachLoad(Counting):
    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.epoch += 1


@fault("order.consumed", "B160", "the hook that saves runs before the batch is counted")
class TrainsABatchTwice(Loop):
    def state_dict(self) -> State:
        state = super().state_dict()
        state["order"]["consumed"] -= BATCH
        return state


@fault("order", "B161", "a file from the middle of an epoch goes on at the next one")
class SkipsTheRest(Loop):
    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.order.consumed = SAMPLES


@fault("steps", "B163", "the step counter is outside of what is saved: a switch fires twice", at=8)
class FiresTwice(Loop):
    forgets = ("steps",)

    def step(self) -> Any:
        if self.steps == 6:
            nn.init.ones_(self.model.last.bias)
        return super().step()


class Logging(Loop):
    """Logs the mean loss of every fifth step."""

    values = (*Loop.values, "total", "since")

    def __init__(self) -> None:
        super().__init__()
        self.total, self.since = 0.0, 0

    def step(self) -> Any:
        loss = super().step()
        self.total += loss
        self.since += 1
        record = {"loss": loss}
        if self.since == 5:
            record["mean"] = self.total / 5
            self.total, self.since = 0.0, 0
        return record


@fault("since", "B164", "records fall on other steps: the interval is counted from the resume")
class LogsAtOtherSteps(Logging):
    forgets = ("since",)


@fault("total", "B164", "the running mean starts again")
class ForgetsTheRunningMean(Logging):
    forgets = ("total",)


@fault("replay", "B127", "the replay buffer is not in the file")
class ForgetsTheReplayBuffer(Loop):
    def __init__(self) -> None:
        super().__init__()
        self.replay: list[int] = []

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        again = self.replay[-3:]
        self.replay.append(int(x[0, 0] * 1000) % SAMPLES)
        if not again:
            return super().loss(x, y)
        return super().loss(torch.cat([x, X[again]]), torch.cat([y, Y[again]]))


@fault("exploration", "B127", "the exploration that decays with the steps of this process is not in the file")
class ForgetsExploration(Loop):
    def __init__(self) -> None:
        super().__init__()
        self.exploration = 1.0

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.exploration *= 0.9
        return super().loss(x, y) + self.exploration * self.model(x).square().mean()
