"""Pure decisions: no I/O, clock, Ray or SQL."""
