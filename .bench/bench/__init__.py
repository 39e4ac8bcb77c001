"""Benchmarks: aiolocks beside its peers, on one machine, in one run. `python .bench --help`.

They are measurements and not tests: nothing here fails because something was slow.
"""
