"""Engines behind HTTP: vLLM and SGLang servers as one engine; an OpenAI-compatible endpoint for evaluation.

    Fleet (routing, failover, weight updates) -> EngineClient (vllm.py, sglang.py) -> Http -> server
    ServerProcess (a server of this run, or an external URL) gives the fleet the address of each server

Invariant: every token carries the version of the weights that sampled it, as its server reported it.
"""
