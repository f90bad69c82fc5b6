"""Engines behind HTTP: vLLM and SGLang servers as one engine; an OpenAI-compatible endpoint for evaluation.

    Fleet (routing, failover, weight updates) -> EngineClient (vllm.py, sglang.py) -> Http -> server
    Host (a server this run started, or somebody else's URL) tells the fleet where each server is

The rule that must not break: every token carries the version of the weights that sampled it, as the server
that sampled it says.
"""
