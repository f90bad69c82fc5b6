"""Sandboxes whose process 1 is our supervisor, whether bubblewrap or a Docker engine made them."""
