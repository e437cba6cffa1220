"""Benchmarks: cold weights, yardsticks of the same run, peers on the same work."""
