"""The wire formats: each reads a `ChatRequest` and writes a `ClientReply` as its clients expect it."""
