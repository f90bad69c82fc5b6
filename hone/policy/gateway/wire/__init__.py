"""The wire formats: each reads requests into `Asked` and writes a `Shown` reply as its clients expect it."""
