"""Log-probabilities, entropies and gradients of logits, beside torch's own functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hone.train.vocabulary import replace_by_gradient, score_rows

pytestmark = pytest.mark.model

TEMPERATURE = 0.7


def example(count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [n, 300], one of them certain of its target; targets [n]; gradients [n]."""
    torch.manual_seed(count)
    logits, targets = 4 * torch.randn(count, 300), torch.randint(0, 300, (count,))
    logits[0, targets[0]] = 200.0
    return logits.to(dtype), targets, torch.randn(count)


def expected(logits: Tensor, targets: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities, entropies and the gradient of the logits, by autograd in float64."""
    exact = logits.double().requires_grad_()
    every = (exact / TEMPERATURE).log_softmax(-1)
    logprobs = every.gather(-1, targets[:, None])[:, 0]
    logprobs.backward(grad.double())
    assert exact.grad is not None
    return logprobs.detach(), -(every.exp() * every).sum(-1).detach(), exact.grad


def require_equal(
    score: Callable[..., Any], gradient: Callable[..., Any], count: int, dtype: torch.dtype
) -> None:
    logits, targets, grad = example(count, dtype)
    logprobs, entropies, slope = expected(logits, targets, grad)
    found, entropy, norms = score(logits, targets, TEMPERATURE)
    torch.testing.assert_close(found.double(), logprobs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy.double(), entropies, rtol=1e-5, atol=1e-4)
    gradient(logits, targets, norms, grad, TEMPERATURE)
    assert logits.dtype == dtype
    rounding = 2**-8 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(logits.double(), slope, rtol=rounding, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_and_gradients_equal_those_of_autograd(dtype: torch.dtype) -> None:
    require_equal(score_rows, replace_by_gradient, 17, dtype)


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_kernels_equal_plain_ones(dtype: torch.dtype) -> None:
    """Compiled for this CPU, as they are for a GPU; any number of rows without compiling again."""
    compile_options: dict[str, Any] = {"dynamic": True, "fullgraph": True}
    score = torch.compile(score_rows, **compile_options)
    gradient = torch.compile(replace_by_gradient, **compile_options)
    require_equal(score, gradient, 17, dtype)
    with torch.compiler.set_stance("fail_on_recompile"):
        require_equal(score, gradient, 40, dtype)
