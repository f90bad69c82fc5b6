"""Loaded into vLLM's workers (`--worker-extension-cls hone_vllm.Repack`); imports nothing of Hone.

On a CPU, vLLM computes with a packed copy of each weight. Its reload packs the weights that it loads, but not
a head that shares the embedding's weights: without `hone_repack` the head keeps the old ones.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from __future__ import annotations

from typing import Any


class Repack:
    model_runner: Any  # the worker's

    def hone_repack(self) -> int:
        """Pack the weights of every head again; return the number of heads."""
        from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        heads = [m for m in self.model_runner.get_model().modules() if isinstance(m, ParallelLMHead)]
        for head in heads:
            dispatch_cpu_unquantized_gemm(head, remove_weight=False)
        return len(heads)
