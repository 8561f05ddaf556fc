r"""OT-CFM: flow matching whose noise is paired with the data by optimal transport (Tong et al. 2024).

Flow matching pairs each data point with noise drawn independently of it, so that the straight lines between them cross
and their mean velocity bends. OT-CFM keeps a batch's noise but deals it out again, by the permutation that minimises

.. math:: \sum_i \lVert x_0^{(i)} - z^{(\pi(i))} \rVert^2 ,

the exact optimal transport plan between two sets of equal weights. Lines then hardly cross, and a few Euler steps go
further. This is what `torchcfm` computes (`OTPlanSampler`, method "exact"); it draws pairs from the plan with
replacement, whereas here each point and each noise is used once, which needs no further randomness.

The plan is that of a batch, so that its size matters, and that of each process and micro-batch for itself. Labels play
no part in it, as in torchcfm: given a label, the noise is then no longer quite normal. The same holds for the noise
given :math:`x_t`, which the transitions with churn rely on: sample with Euler steps, that is, churn 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from ..kernel import distance, points
from ..loss import RegressionLoss

__all__ = ["OTFlowLoss", "pairing"]


@torch.no_grad()
def pairing(x0: Tensor, z: Tensor) -> Tensor:
    """The permutation, (n,), by which z[permutation] is nearest to x0, both (n, *event), in mean squared distance."""
    cost = distance(points(x0).double(), points(z).double()).square()
    return torch.as_tensor(linear_sum_assignment(cost.cpu().numpy())[1], device=z.device)


@dataclass(frozen=True, kw_only=True)
class OTFlowLoss(RegressionLoss):
    """The regression with noise that is paired with the data of its batch."""

    def noise(self, x0: Tensor, generator: torch.Generator | None) -> Tensor:
        z = super().noise(x0, generator)
        return z[pairing(x0, z)]
