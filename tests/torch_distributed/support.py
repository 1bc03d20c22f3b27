"""What the scripts here share. They import PyTorch alone: ringd is the backend's name, no more."""

from __future__ import annotations

import torch
import torch.distributed as dist


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


def run(*tests, init_method=None):
    """Runs tests on this rank of a job and prints the last line."""
    torch.set_num_threads(1)
    dist.init_process_group("ringd", init_method=init_method)
    checks = Checks()
    rank, size = dist.get_rank(), dist.get_world_size()
    for test in tests:
        test(checks, rank, size)
    dist.destroy_process_group()
    print(f"rank {rank} of {size}: {checks.passed} checks passed")
