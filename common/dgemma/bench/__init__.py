"""Measuring tokens per second the same way everywhere. Imports no tensor library; peers live in `benchmarks/peers`."""
