"""`make fuzz`: every file the program reads, changed at random, in process; nothing may come of it but our own error.

`python -m tools.fuzz --help` says how to try one reader, or one input again: an input is made from the seed, the
reader's name and its number, and from nothing else.
"""
