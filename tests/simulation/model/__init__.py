"""A formal model of the mutex's protocol in TLA+, and what its checker must find in it.

Start with Mutex.tla, the spec; Client.tla and Scripts.tla are the two sides that it puts together.
"""
