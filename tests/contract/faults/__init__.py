"""Backends that each break one promise, to test the tests."""
