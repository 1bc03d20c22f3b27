"""Local stand-ins for the repositories that Bazel would otherwise fetch, and what
differs between Debian's releases: Python's headers and Abseil's archives."""

_RULES_CC = """
cc_binary = native.cc_binary
cc_import = native.cc_import
cc_library = native.cc_library
cc_libc_top_alias = getattr(native, "cc_libc_top_alias", None)
cc_proto_library = native.cc_proto_library
cc_test = native.cc_test
cc_toolchain = native.cc_toolchain
cc_toolchain_suite = native.cc_toolchain_suite
fdo_prefetch_hints = native.fdo_prefetch_hints
fdo_profile = native.fdo_profile
objc_library = native.objc_library
"""

def _native_rules_cc_impl(ctx):
    ctx.file("BUILD", "")
    ctx.file("cc/BUILD", "")
    ctx.file("cc/defs.bzl", _RULES_CC)

# @rules_cc whose cc/defs.bzl forwards to the rules built into Bazel.
native_rules_cc = repository_rule(implementation = _native_rules_cc_impl)

_COVERAGE_BUILD = """
package(default_visibility = ["//visibility:public"])

sh_binary(name = "coverage_report_generator", srcs = ["stub.sh"])

sh_binary(name = "lcov_merger", srcs = ["stub.sh"])
"""

def _stub_coverage_tools_impl(ctx):
    ctx.file("BUILD", _COVERAGE_BUILD)
    ctx.file("stub.sh", "#!/bin/sh\nexit 0\n", executable = True)
    ctx.file("tools/coverage/lcov_merger/BUILD", "")

# @remote_coverage_tools: every test names it, so it must exist even where nobody asks for coverage.
stub_coverage_tools = repository_rule(implementation = _stub_coverage_tools_impl)

_PYTHON_BUILD = """
cc_library(
    name = "headers",
    hdrs = glob(["include/**/*.h"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
)
"""

def _local_python_impl(ctx):
    script = "import sysconfig; print(sysconfig.get_path('include'))"
    result = ctx.execute(["/usr/bin/python3", "-I", "-c", script])
    if result.return_code != 0:
        fail("/usr/bin/python3 does not run; install python3 and python3-dev: " + result.stderr)
    include = ctx.path(result.stdout.strip())
    if not include.get_child("Python.h").exists:
        fail("%s has no Python.h; install python3-dev" % include)
    ctx.symlink(include, "include")
    ctx.file("BUILD", _PYTHON_BUILD)

# @local_python//:headers, from the system's /usr/bin/python3.
local_python = repository_rule(implementation = _local_python_impl, local = True)

def _local_abseil_impl(ctx):
    machine = ctx.execute(["uname", "-m"]).stdout.strip()
    files = ctx.path("/usr/lib/%s-linux-gnu" % machine).readdir()
    archives = sorted([
        file.basename
        for file in files
        if file.basename.startswith("libabsl_") and file.basename.endswith(".a") and
           "test_util" not in file.basename and "scoped_set_env" not in file.basename
    ])
    if not archives:
        fail("no libabsl_*.a; install libabsl-dev (deploy/setup.sh does)")
    ctx.file("BUILD", "")
    ctx.file("archives.bzl", "ABSEIL_ARCHIVES = %r\n" % archives)

# @local_abseil//:archives.bzl: ABSEIL_ARCHIVES, the file names of Abseil's static archives.
local_abseil = repository_rule(implementation = _local_abseil_impl, local = True)
