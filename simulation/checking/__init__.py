"""Judges of histories: whether what clients were told can have come from one queue that loses nothing.

``history`` is the record of what was asked and answered; ``model`` says what a right queue answers. Each other
module is one check: ``witness`` (exact, knows the log), ``priority_queue`` (knows only the clients' clocks),
``delivery`` (at least once, leases, bounds), ``exhaustive`` (every order, for small histories: the judge of the
judges). What each proves, and what it does not, is in docs/checkers.md.
"""
