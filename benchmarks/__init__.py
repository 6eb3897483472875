"""Benchmarks that need other projects: peers, rates of accelerators, random models. Runs from a checkout."""
