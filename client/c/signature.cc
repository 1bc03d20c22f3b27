#include "client/c/signature.h"

#include <cstring>

#include "common/base/types.h"

namespace ringd::client {

void Hasher::Add(double number) {
  uint64_t bits;
  std::memcpy(&bits, &number, sizeof(bits));
  Add(bits);
}

void Hasher::Add(std::string_view text) {
  Add(uint64_t{text.size()});
  while (!text.empty()) {
    uint64_t word = 0;
    const size_t bytes = text.size() < sizeof(word) ? text.size() : sizeof(word);
    std::memcpy(&word, text.data(), bytes);
    Add(word);
    text.remove_prefix(bytes);
  }
}

uint64_t Hasher::Finish() const {
  uint64_t hash = state_;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111eb;
  return hash ^ (hash >> 31);
}

uint64_t SignatureOf(const ringd_operation& operation) {
  Hasher hasher;
  hasher.Add(uint64_t{operation.wire} << 56 | uint64_t{operation.operation} << 48 |
             uint64_t{operation.dtype} << 40 | uint64_t{operation.reduction} << 32 |
             operation.group);
  hasher.Add(uint64_t{static_cast<uint32_t>(operation.root)} << 32 | operation.tag);
  hasher.Add(operation.prescale);
  hasher.Add(operation.postscale);
  const auto kind = static_cast<Operation>(operation.operation);
  const bool first_may_differ = kind == Operation::kAllgather || kind == Operation::kAlltoall ||
                                kind == Operation::kGather || kind == Operation::kScatter;
  hasher.Add(uint64_t{operation.ndim});
  for (uint32_t i = first_may_differ ? 1 : 0; i < operation.ndim; ++i) {
    hasher.Add(static_cast<uint64_t>(operation.shape[i]));
  }
  hasher.Add(operation.name == nullptr ? std::string_view() : std::string_view(operation.name));
  return hasher.Finish();
}

}  // namespace ringd::client
