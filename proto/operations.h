// What kinds of operations there are, for clients and daemons alike.
#ifndef RINGD_PROTO_OPERATIONS_H_
#define RINGD_PROTO_OPERATIONS_H_

#include "common/base/types.h"

namespace ringd {

constexpr bool IsReduction(Operation operation) {
  return operation == Operation::kAllreduce || operation == Operation::kReduceScatter ||
         operation == Operation::kReduce;
}

constexpr bool HasRoot(Operation operation) {
  return operation == Operation::kBroadcast || operation == Operation::kReduce ||
         operation == Operation::kGather || operation == Operation::kScatter;
}

constexpr bool IsMessage(Operation operation) {
  return operation == Operation::kSend || operation == Operation::kRecv;
}

// Groups are made or given up; nothing moves.
constexpr bool IsOfGroups(Operation operation) {
  return operation == Operation::kGroupRegister || operation == Operation::kGroupUnregister;
}

}  // namespace ringd

#endif  // RINGD_PROTO_OPERATIONS_H_
