"""Thin adapters between Hone and packages that people already use."""
