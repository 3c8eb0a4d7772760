"""The replicated log: what is agreed on, in which order. Pure: no clock, chance, file or socket."""
