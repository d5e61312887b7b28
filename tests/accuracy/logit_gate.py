"""How far logits may be from the reference's, by profile.

The difference is taken over the whole vocabulary at every position, teacher-forced; the 99th percentile within each
prompt, then averaged. The margin of a position is the reference's best logit minus its second.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

EXACT_MEAN, EXACT_P99, EXACT_MARGIN = 0.005, 0.02, 0.05
REGRET_MEAN, REGRET_P99, CHANGES = 0.01, 0.3, 0.045
CUDA_MEAN, CUDA_MARGIN = 0.12, 0.25


@dataclass(frozen=True)
class Difference:
    """Over all prompts. ``overturned``: the largest margin among positions whose best token changed."""

    mean: float
    p99: float
    positions: int
    changed: int
    overturned: float
    regret_mean: float
    regret_p99: float

    @property
    def exact(self) -> bool:
        """f32 activations, f16 keys and values."""
        return self.mean <= EXACT_MEAN and self.p99 <= EXACT_P99 and self.overturned <= EXACT_MARGIN

    @property
    def quantised(self) -> bool:
        """int8 activations, as far as it can be told without another program to compare with."""
        few = self.changed <= CHANGES * self.positions
        return self.regret_mean <= REGRET_MEAN and self.regret_p99 <= REGRET_P99 and few

    @property
    def cuda(self) -> bool:
        """bf16 weights on CUDA."""
        return self.mean <= CUDA_MEAN and self.overturned < CUDA_MARGIN


def compare(pairs: Iterable[tuple[Tensor, Tensor]]) -> Difference:
    """Of (reference, ours), f32[positions, vocabulary] a prompt."""
    means, p99s, regrets, margins, changed = [], [], [], [], []
    for reference, ours in pairs:
        if reference.shape != ours.shape or not ours.isfinite().all():
            raise ValueError(f"logits of shape {tuple(ours.shape)}, finite: {bool(ours.isfinite().all())}")
        gaps = (reference - ours).abs().numpy().ravel()
        means.append(float(gaps.mean(dtype=np.float64)))
        p99s.append(percentile(gaps, 0.99))
        best, choice = reference.topk(2).values, ours.argmax(-1)
        margins += (best[:, 0] - best[:, 1]).tolist()
        regrets += (best[:, 0] - reference.gather(1, choice[:, None])[:, 0]).tolist()
        changed += (choice != reference.argmax(-1)).tolist()
    return Difference(
        mean=float(np.mean(means)),
        p99=float(np.mean(p99s)),
        positions=len(changed),
        changed=sum(changed),
        overturned=max((margin for margin, other in zip(margins, changed, strict=True) if other), default=0.0),
        regret_mean=float(np.mean(regrets)),
        regret_p99=percentile(np.array(regrets), 0.99),
    )


def percentile(values: np.ndarray, share: float) -> float:
    """The smallest value that at least ``share`` of all do not exceed."""
    place = int(np.ceil(share * len(values))) - 1
    return float(np.partition(values, place)[place])
