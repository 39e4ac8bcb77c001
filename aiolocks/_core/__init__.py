"""The lowest layer, which all others use: errors, options, names, time, replies. Nothing here asks Redis."""

VERSION = "0.1.0"
