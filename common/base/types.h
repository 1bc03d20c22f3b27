// Element types and reductions: the two enumerations that every room shares.
//
// The numbers are part of the arena layout and of the wire format: never renumber, only append.
#ifndef RINGD_COMMON_BASE_TYPES_H_
#define RINGD_COMMON_BASE_TYPES_H_

#include <cstddef>
#include <cstdint>

namespace ringd {

enum class DType : uint8_t {
  kInvalid = 0,
  kUInt8 = 1,
  kInt8 = 2,
  kUInt16 = 3,
  kInt16 = 4,
  kUInt32 = 5,
  kInt32 = 6,
  kUInt64 = 7,
  kInt64 = 8,
  kFloat16 = 9,
  kBFloat16 = 10,
  kFloat32 = 11,
  kFloat64 = 12,
  kBool = 13,
};
inline constexpr int kDTypeCount = 14;

enum class Reduction : uint8_t {
  kNone = 0,  // Operations that move bytes.
  kAverage = 1,
  kSum = 2,
  kMin = 3,
  kMax = 4,
  kProduct = 5,
  kAdasum = 6,
};
inline constexpr int kReductionCount = 7;

enum class Operation : uint8_t {
  kInvalid = 0,
  kNoop = 1,  // Completes as soon as the daemon reads it: measures the daemon's path.
  kAllreduce = 2,
  kAllgather = 3,
  kBroadcast = 4,
  kReduceScatter = 5,
  kAlltoall = 6,
  kBarrier = 7,
  kPlanRegister = 8,
  kPlanBucket = 9,
  kPlanUnregister = 10,
  kReduce = 11,
  kGather = 12,
  kScatter = 13,
  kSend = 14,
  kRecv = 15,
  kJoin = 16,
  kGroupRegister = 17,
  kGroupUnregister = 18,
};
inline constexpr int kOperationCount = 19;

// Bytes of one element; 0 for kInvalid and for numbers outside the enumeration.
constexpr size_t DTypeBytes(DType dtype) {
  constexpr uint8_t kBytes[kDTypeCount] = {0, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1};
  const auto index = static_cast<size_t>(dtype);
  return index < kDTypeCount ? kBytes[index] : 0;
}

// "float32", as NumPy spells it; "invalid" for numbers outside the enumeration.
const char* DTypeName(DType dtype);
// "average", "sum", ...
const char* ReductionName(Reduction reduction);
// "allreduce", "allgather", ...
const char* OperationName(Operation operation);

}  // namespace ringd

#endif  // RINGD_COMMON_BASE_TYPES_H_
