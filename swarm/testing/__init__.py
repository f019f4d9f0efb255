"""Test doubles that pass the conformance checks of the real thing, shipped so that others can test against them."""
