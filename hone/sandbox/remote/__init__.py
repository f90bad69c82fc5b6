"""Shared by the servers and clients of sandboxes: wire models, typed errors, token files."""
