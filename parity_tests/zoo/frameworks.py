"""Sound loops of frameworks, where they are installed: ten lines around each make a loop that can be audited."""

import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib.util import find_spec
from queue import SimpleQueue
from typing import Any

import torch

from parity_tests.zoo.base import BATCH, SAMPLES, STEPS, Loop, Net, Order, State, X, Y, sound


class Ordered:
    """A loader with a position, as both frameworks save it: batches in the order of `Order`."""

    def __init__(self) -> None:
        self.order = Order()

    def __iter__(self) -> Any:
        while True:
            ids = self.order.draw()
            yield X[ids], Y[ids]
            if self.order.consumed == SAMPLES:
                return

    def __len__(self) -> int:
        return SAMPLES // BATCH

    def state_dict(self) -> State:
        return self.order.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.order.load_state_dict(state)


class Paced(ABC):
    """For a trainer that runs to its end: it runs in a thread, and a callback of its own halts it after each batch.

    What the trainer keeps for itself (how it was resumed, what it fetched) is no state of the loop, so that the loop
    does not hold the trainer; it holds the net, the optimizer, the schedule and the data.
    """

    values = ()
    begun = False

    @abstractmethod
    def fit(self, path: str | None = None) -> None:
        """Call `begin`."""

    def begin(self, train: Callable[[], Any]) -> None:
        """Train in a thread, up to the first pause."""

        def run() -> None:
            try:
                train()
                self.answer.put(StopIteration("the training is over"))
            except BaseException as error:  # it is raised where the loop is asked for a step
                self.answer.put(error)

        self.wish, self.answer, self.begun = SimpleQueue(), SimpleQueue(), True
        threading.Thread(target=run, daemon=True).start()
        self.wait()

    def step(self) -> Any:
        if not self.begun:
            self.fit()
        self.wish.put(None)
        return self.wait()

    def save(self, path: str) -> None:
        self.wish.put(path)
        self.wait()

    def load(self, path: str) -> None:
        self.fit(path)

    def wait(self) -> Any:
        """What the next pause hands over."""
        answer = self.answer.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def pause(self, answer: Any = None) -> str | None:
        """In the trainer's thread: hand over what there is, and wait; the path to save to, if that is asked for."""
        self.answer.put(answer)
        return self.wish.get()


if find_spec("accelerate"):

    @sound
    class Accelerated(Loop):
        """Hugging Face accelerate: `prepare`, `backward`, `save_state`, `load_state`; a folder beside the file."""

        def __init__(self) -> None:
            super().__init__()
            from accelerate import Accelerator

            self.accelerator = Accelerator(cpu=True)
            made = self.accelerator.prepare(self.model, self.optimizer, self.schedule)
            self.model, self.optimizer, self.schedule = made
            self.accelerator.register_for_checkpointing(self.order)

        def update(self, loss: torch.Tensor) -> None:
            self.optimizer.zero_grad()
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.schedule.step()

        def save(self, path: str) -> None:
            self.accelerator.save_state(f"{path}.folder", safe_serialization=False)
            torch.save(self.steps, path)

        def load(self, path: str) -> None:
            self.accelerator.load_state(f"{path}.folder")
            self.steps = torch.load(path, weights_only=True)


if find_spec("lightning"):
    from lightning import Fabric

    @sound
    class Fabricated(Loop):
        """Lightning Fabric: `setup`, `backward`, `save` and `load`."""

        def __init__(self) -> None:
            super().__init__()
            self.fabric = Fabric(accelerator="cpu", devices=1)
            self.model, self.optimizer = self.fabric.setup(self.model, self.optimizer)

        def update(self, loss: torch.Tensor) -> None:
            self.optimizer.zero_grad()
            self.fabric.backward(loss)
            self.optimizer.step()
            self.schedule.step()

        def save(self, path: str) -> None:
            self.fabric.save(path, self.state_dict())

        def load(self, path: str) -> None:
            self.load_state_dict(self.fabric.load(path))


if find_spec("lightning"):
    from lightning import LightningModule, Trainer
    from lightning.pytorch.callbacks import LambdaCallback

    class Module(LightningModule):
        """The net, its loss, its optimizer and its schedule."""

        def __init__(self, net: Net) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    @sound
    class Fitted(Paced):
        """Lightning's Trainer, which saves a loader that has a state_dict."""

        def __init__(self) -> None:
            warnings.filterwarnings("ignore", ".*LeafSpec.*")  # Lightning calls what torch 2.13 deprecates
            torch.manual_seed(5)  # noqa: TID251 - as users do
            self.model, self.loader = Net(), Ordered()

        def fit(self, path: str | None = None) -> None:
            pace = LambdaCallback(on_train_start=self.on_start, on_train_batch_end=self.on_batch_end)
            trainer = Trainer(
                accelerator="cpu", devices=1, max_steps=2 * STEPS, callbacks=[pace], logger=False,
                enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
            )  # fmt: skip
            self.begin(lambda: trainer.fit(Module(self.model), self.loader, ckpt_path=path))

        def on_start(self, trainer: Any, module: Any) -> None:
            (self.optimizer,) = trainer.optimizers
            (self.schedule,) = (config.scheduler for config in trainer.lr_scheduler_configs)
            self.pause()

        def on_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
            seen = {"loss": outputs["loss"].item(), "step": trainer.global_step, "epoch": trainer.current_epoch}
            path = self.pause(seen)
            while path:
                trainer.save_checkpoint(path)
                path = self.pause()
