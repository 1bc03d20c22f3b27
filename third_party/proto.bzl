"""C++ code from .proto files, by the system's protoc and grpc_cpp_plugin."""

def ringd_proto_library(name, srcs, deps = [], grpc = True, visibility = None):
    """A cc_library with the code of .proto files.

    `#include "proto/node.pb.h"` and, with grpc, `#include "proto/node.grpc.pb.h"`.

    Args:
      name: the cc_library; NAME_protos is the filegroup of the sources.
      srcs: .proto files of this package, imported by their path from the workspace's root.
      deps: other ringd_proto_library targets that srcs import, as "//package:name" or ":name".
      grpc: whether srcs define services.
      visibility: of both targets.
    """
    suffixes = [".pb"] + ([".grpc.pb"] if grpc else [])
    stems = [src[:-len(".proto")] for src in srcs]
    headers = [stem + suffix + ".h" for stem in stems for suffix in suffixes]
    sources = [stem + suffix + ".cc" for stem in stems for suffix in suffixes]
    native.filegroup(
        name = name + "_protos",
        srcs = srcs + [dep + "_protos" for dep in deps],
        visibility = visibility,
    )
    flags = "-I. -I/usr/include --cpp_out=$(BINDIR)"
    if grpc:
        flags += " --plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin --grpc_out=$(BINDIR)"
    native.genrule(
        name = name + "_generate",
        srcs = [":" + name + "_protos"],
        outs = headers + sources,
        cmd = "/usr/bin/protoc %s %s" % (
            flags,
            " ".join([native.package_name() + "/" + src for src in srcs]),
        ),
    )
    native.cc_library(
        name = name,
        srcs = sources,
        hdrs = headers,
        copts = ["-w"],
        visibility = visibility,
        deps = deps + ["//third_party:grpc++" if grpc else "//third_party:protobuf"],
    )
