"""Compiler flags of every target that we wrote."""

RINGD_COPTS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wnon-virtual-dtor",
    "-Woverloaded-virtual",
    "-Wvla",
    # A designated initializer names the fields that differ from their defaults, on purpose.
    "-Wno-missing-field-initializers",
]
