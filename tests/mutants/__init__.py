"""Mutants: one small change of the library at a time, to see whether a test notices.

Planted defects are where somebody expected them; these are where chance puts them. `table` says which tests a file
answers to. A comment `equivalent: comparison, why` at the end of a line, or above it, says that no test can notice
mutants of that kind there; `equivalent: 4, why`, the one that puts a 4 there, and `4 (second)` the second that does.
"""
