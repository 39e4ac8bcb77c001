"""The one connection to Redis that every task of a loop shares, the subscription beside it, and the scripts."""
