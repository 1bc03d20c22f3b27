"""For scripts that each rank of a job runs: comparing and counting."""

from __future__ import annotations

import torch


class Checks:
    """Compares and counts."""

    def __init__(self) -> None:
        self.passed = 0

    def equal(self, result, expected, what):
        """Same dtype, shape and values."""
        assert result.dtype == expected.dtype, (what, result.dtype, expected.dtype)
        assert result.shape == expected.shape, (what, result.shape, expected.shape)
        assert torch.equal(result, expected), (what, result, expected)
        self.passed += 1

    def close(self, result, expected, what, rtol=1e-5, atol=1e-6):
        """Same but for rounding."""
        torch.testing.assert_close(
            result, expected, rtol=rtol, atol=atol, msg=lambda text: f"{what}: {text}"
        )
        self.passed += 1

    def true(self, condition, what):
        assert condition, what
        self.passed += 1

    def raises(self, kind, call, *texts):
        """An exception of that class, with those texts in its message."""
        try:
            call()
        except kind as error:
            for text in texts:
                assert text in str(error), (text, str(error))
            self.passed += 1
            return error
        raise AssertionError(f"nothing was raised instead of {kind.__name__}")
