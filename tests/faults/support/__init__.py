"""What the fault tests stand on: programs to break, and measures of what is left and how late it was."""
