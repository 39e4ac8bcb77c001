"""What all other wings use: errors, options, names, time, and what Redis may answer. Nothing here asks Redis."""

VERSION = "0.1.0"
