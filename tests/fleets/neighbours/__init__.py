"""What runs the processes of two versions of aiolocks, for `test_neighbours`."""
