"""What the tests stand on: real servers, worker processes, and checkers of what they left or recorded."""
