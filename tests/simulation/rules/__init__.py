"""ARCHITECTURE.md's rules in whole programs. The defects that must fail each of these tests are in `attached`."""
