"""Helpers of the tests that run whole clusters."""
