"""What users hold: one file for each primitive, all on `base`. They never import each other."""
