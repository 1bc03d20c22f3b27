#include "common/base/types.h"

namespace ringd {
namespace {

constexpr const char* kDTypeNames[kDTypeCount] = {
    "invalid", "uint8", "int8",    "uint16",   "int16",   "uint32",  "int32",
    "uint64",  "int64", "float16", "bfloat16", "float32", "float64", "bool"};

constexpr const char* kReductionNames[kReductionCount] = {"none", "average", "sum",   "min",
                                                          "max",  "product", "adasum"};

constexpr const char* kOperationNames[kOperationCount] = {"invalid",
                                                          "noop",
                                                          "allreduce",
                                                          "allgather",
                                                          "broadcast",
                                                          "reducescatter",
                                                          "alltoall",
                                                          "barrier",
                                                          "plan_register",
                                                          "plan_bucket",
                                                          "plan_unregister",
                                                          "reduce",
                                                          "gather",
                                                          "scatter",
                                                          "send",
                                                          "recv",
                                                          "join",
                                                          "group_register",
                                                          "group_unregister"};

template <size_t N>
const char* NameAt(const char* const (&names)[N], size_t index) {
  return index < N ? names[index] : "invalid";
}

}  // namespace

const char* DTypeName(DType dtype) { return NameAt(kDTypeNames, static_cast<size_t>(dtype)); }

const char* ReductionName(Reduction reduction) {
  return NameAt(kReductionNames, static_cast<size_t>(reduction));
}

const char* OperationName(Operation operation) {
  return NameAt(kOperationNames, static_cast<size_t>(operation));
}

}  // namespace ringd
