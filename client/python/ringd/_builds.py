"""What Horovod's scripts ask about their library: ringd has engines and networks of its own."""

from __future__ import annotations

from . import _core


def mpi_built() -> bool:
    """False: MPI is not used."""
    return False


def mpi_enabled() -> bool:
    """False: MPI is not used."""
    return False


def mpi_threads_supported() -> bool:
    """False: MPI is not used. Operations may come from several threads where they have names."""
    _core.info()
    return False


def gloo_built() -> bool:
    """False: Gloo is not used. (What a script does without MPI and with Gloo works with ringd.)"""
    return False


def gloo_enabled() -> bool:
    """False: Gloo is not used."""
    return False


def nccl_built() -> int:
    """0: NCCL is not used in this version."""
    return 0


def ddl_built() -> bool:
    """False: DDL is not used."""
    return False


def ccl_built() -> bool:
    """False: oneCCL is not used."""
    return False


def cuda_built() -> bool:
    """False: tensors are on the CPU in this version."""
    return False


def rocm_built() -> bool:
    """False: tensors are on the CPU in this version."""
    return False
