"""Eight worker processes, a handful of names, one server, and a random mix of faults: `python -m tests.fleets.mix`."""
