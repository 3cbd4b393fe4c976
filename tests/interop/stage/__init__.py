"""The stage of the interop tests: it installs the programs, starts and stops them, and counts what the checks say."""
