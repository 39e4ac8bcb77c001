"""Simulation: the library's own code and scripts, and a world around them whose every misfortune comes from a seed.

`python -m tests.simulation --seed N --trace` replays one; see `__main__`.
"""
