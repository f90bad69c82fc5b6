"""Graded rollouts for a program that owns the engine and the training."""
