"""Thin adapters to third-party packages."""
