// Changes to a fuzz target's inputs, for runs without libFuzzer.
#ifndef RINGD_COMMON_FUZZ_MUTATOR_H_
#define RINGD_COMMON_FUZZ_MUTATOR_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "common/fuzz/fuzz.h"

namespace ringd {

inline constexpr size_t kMaxFuzzBytes = 4096;

// Makes inputs from given ones; the same seed, the same inputs. Thread-compatible: external
// synchronisation.
class FuzzMutator {
 public:
  explicit FuzzMutator(uint64_t seed) : random_(seed) {}

  // One of `inputs` with up to eight changes; at most kMaxFuzzBytes long. REQUIRES: inputs is not
  // empty.
  FuzzBytes Next(const std::vector<FuzzBytes>& inputs);

 private:
  void Change(const std::vector<FuzzBytes>& inputs, FuzzBytes* bytes);
  size_t Below(size_t limit) { return limit == 0 ? 0 : random_() % limit; }

  std::mt19937_64 random_;
};

}  // namespace ringd

#endif  // RINGD_COMMON_FUZZ_MUTATOR_H_
