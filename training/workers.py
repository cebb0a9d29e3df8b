"""Several processes that train one model: each on its own text, all weights averaged every so many steps.

Two of them use two cores without the spin-waiting of threads.
"""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from training.schedule import Clock


def join(folder: Path, worker: int, workers: int) -> None:
    """Wait until all workers of a run are there; `folder` is where they meet."""
    folder.mkdir(parents=True, exist_ok=True)
    meeting = (folder / "meeting").resolve()
    dist.init_process_group("gloo", f"file://{meeting}", rank=worker, world_size=workers)


def average(values: Tensor) -> None:
    """Replace the values by their mean over all workers."""
    dist.all_reduce(values)
    values.div_(dist.get_world_size())


def average_weights(model: nn.Module) -> None:
    """Replace the weights by their mean over all workers."""
    for parameter in model.parameters():
        average(parameter.data)


class SharedClock(Clock):
    """A clock that reads the same for every worker, so that all end at the same step: their mean, every 20 steps."""

    EVERY = 20

    def seconds(self) -> float:
        """The mean over the workers; between two agreements, the last one."""
        if self._steps % self.EVERY:
            return self._elapsed
        mean = torch.tensor([super().seconds()])
        average(mean)
        return float(mean)
