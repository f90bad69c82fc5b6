"""Published speeds of GPUs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Peak dense bfloat16 operations per second, and bytes of memory per second, of one GPU."""

    flops: float
    bandwidth: float


KNOWN = {  # the vendor's figures, by a part of the name that nvidia-smi prints
    "B200": Speed(flops=2250e12, bandwidth=8.0e12),
    "H200": Speed(flops=989e12, bandwidth=4.8e12),
    "H100": Speed(flops=989e12, bandwidth=3.35e12),
    "A100": Speed(flops=312e12, bandwidth=2.0e12),
    "4090": Speed(flops=165e12, bandwidth=1.0e12),
    "L40S": Speed(flops=362e12, bandwidth=0.86e12),
    "A10": Speed(flops=125e12, bandwidth=0.6e12),
    "3090": Speed(flops=71e12, bandwidth=0.94e12),
}


def known_speed(name: str) -> Speed | None:
    """Return the speed of the GPU that nvidia-smi calls `name`; None if `KNOWN` does not list it."""
    return next((speed for part, speed in KNOWN.items() if part in name), None)
