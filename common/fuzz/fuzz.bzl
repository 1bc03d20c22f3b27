"""Fuzz targets: tests in every build, libFuzzer programs with --config=fuzz."""

load("//third_party:copts.bzl", "RINGD_COPTS")

def fuzz_test(name, srcs, deps, rounds = 3000, size = "small"):
    """A target (common/fuzz/fuzz.h) whose corpus is corpus/NAME/ beside its BUILD file.

    Args:
      name: ends in _fuzz.
      srcs: as cc_test's.
      deps: as cc_test's.
      rounds: mutations that the test tries.
      size: as cc_test's.
    """
    native.cc_test(
        name = name,
        size = size,
        srcs = srcs,
        copts = RINGD_COPTS,
        data = native.glob(["corpus/%s/*" % name], allow_empty = True),
        env = {
            "RINGD_FUZZ_CORPUS": "%s/corpus/%s" % (native.package_name(), name),
            "RINGD_FUZZ_ROUNDS": str(rounds),
            "RINGD_FUZZ_SECONDS": "10",
        },
        tags = ["fuzz"],
        deps = deps + [
            "//common/fuzz",
            "//common/fuzz:main",
        ],
    )
