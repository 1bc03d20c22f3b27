// From what a caller asks for to a descriptor: checks, sizes, the parts that need no arena.
#ifndef RINGD_CLIENT_C_REQUEST_H_
#define RINGD_CLIENT_C_REQUEST_H_

#include <cstdint>

#include "client/c/ringd.h"
#include "client/c/slots.h"
#include "proto/arena.h"

namespace ringd::client {

// An operation on its way to the queue.
struct Prepared {
  arena::Descriptor descriptor{};
  Holdings holdings;
  bool is_direct = false;  // The ranks of a node could carry it out themselves: IsDirect.
};

struct OperationBytes {
  uint64_t input = 0;
  uint64_t output = 0;
  bool reads_input = true;        // False: broadcast on a rank that is not the root, barrier.
  bool may_run_in_place = false;  // Input and output are of one size, element by element.
};

// Checks everything that this rank can know alone. RINGD_INVALID_ARGUMENT names the field.
int CheckOperation(const ringd_operation& operation, const ringd_info& info, OperationBytes* bytes);

// The descriptor but for input, output, meta, slot, number, serial and generation.
arena::Descriptor DescribeOperation(const ringd_operation& operation);

// Bytes of the meta record that the operation needs; 0: none.
uint64_t MetaBytes(const ringd_operation& operation);
// Writes it to `record`. REQUIRES: MetaBytes(operation) bytes, aligned to 8.
void WriteMetaRecord(const ringd_operation& operation, void* record);

}  // namespace ringd::client

#endif  // RINGD_CLIENT_C_REQUEST_H_
