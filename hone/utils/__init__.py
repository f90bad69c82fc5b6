"""Helpers that every room shares: files, retries, git environments, clocks, threads."""
