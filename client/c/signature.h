// What ranks must agree on, as one number.
#ifndef RINGD_CLIENT_C_SIGNATURE_H_
#define RINGD_CLIENT_C_SIGNATURE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "client/c/ringd.h"

namespace ringd::client {

// A stable 64-bit hash: the same on every machine and in every version of the library with the same
// layout version. Not for defence: it finds mistakes.
class Hasher {
 public:
  void Add(uint64_t word) {
    state_ = (state_ ^ word) * 0x9e3779b97f4a7c15;
    state_ ^= state_ >> 32;
  }
  void Add(double number);
  // The length counts too.
  void Add(std::string_view text);
  uint64_t Finish() const;

 private:
  uint64_t state_ = 0x72696e6764736967;
};

// Of operation, dtype, wire, reduction, group, shape, root, scales, name and tag. Without the first
// dimension for allgather, alltoall, gather and scatter, where it may differ.
uint64_t SignatureOf(const ringd_operation& operation);

}  // namespace ringd::client

#endif  // RINGD_CLIENT_C_SIGNATURE_H_
