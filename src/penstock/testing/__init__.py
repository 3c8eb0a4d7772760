"""Fakes for our tests and for our users': a disk that loses and tears what was not synced."""
