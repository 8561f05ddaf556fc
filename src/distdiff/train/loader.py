"""Reading batches ahead of training, in processes of their own."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

__all__ = ["read_ahead"]


def read_ahead(data: Dataset[Any], rows: Iterable[list[int]], workers: int) -> Iterator[Any]:
    """What `data` gives for each list of rows, read by `workers` processes."""
    loader = DataLoader(
        data,
        batch_sampler=rows,
        num_workers=workers,
        collate_fn=_as_it_is,
        worker_init_fn=_leave_signals,
        pin_memory=torch.cuda.is_available(),
    )
    return iter(loader)


def _as_it_is(batch: Any) -> Any:
    return batch


def _leave_signals(_: int) -> None:
    """Ctrl-C and SIGTERM reach all processes of a group; the trainer decides when its workers end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
