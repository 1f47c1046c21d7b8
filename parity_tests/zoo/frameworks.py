"""Sound loops of frameworks, where they are installed: ten lines around each make a loop that can be audited."""

import threading
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
    from lightning import Callback, LightningModule, Trainer

    class Module(LightningModule):
        """The net, its loss, its optimizer and its schedule."""

        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    class Pace(Callback):
        """Lets `fit` go on by one batch at a time."""

        def __init__(self) -> None:
            self.go, self.done = SimpleQueue(), SimpleQueue()

        def on_train_start(self, trainer: Any, module: Any) -> None:
            self.done.put(None)
            self.go.get()

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
            self.done.put(float(outputs["loss"]))
            self.go.get()

    @sound
    class Fitted:
        """Lightning's Trainer: `fit` runs in a thread of its own and halts after each batch."""

        values = ()

        def __init__(self) -> None:
            torch.manual_seed(5)  # noqa: TID251 - as users do
            self.module, self.loader, self.pace = Module(), Ordered(), Pace()
            self.trainer = Trainer(
                accelerator="cpu", devices=1, max_steps=2 * STEPS, callbacks=[self.pace], logger=False,
                enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
            )  # fmt: skip
            self.thread: Any = None

        def begin(self, path: str | None) -> None:
            """Fit up to the start of the training, when a checkpoint is restored."""
            fit = {"train_dataloaders": self.loader, "ckpt_path": path}
            self.thread = threading.Thread(target=self.trainer.fit, args=(self.module,), kwargs=fit, daemon=True)
            self.thread.start()
            self.pace.done.get()

        def step(self) -> float:
            if self.thread is None:
                self.begin(None)
            self.pace.go.put(None)
            return self.pace.done.get()

        def save(self, path: str) -> None:
            self.trainer.save_checkpoint(path)

        def load(self, path: str) -> None:
            self.begin(path)
