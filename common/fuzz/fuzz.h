// What a fuzz target is made of.
//
// A target is one source file that defines LLVMFuzzerTestOneInput and FuzzSeeds; `fuzz_test` of
// fuzz.bzl makes a test of it, which replays seeds, corpus and some thousands of mutations. With
// --config=fuzz the same target is a libFuzzer program (tests/fuzz.sh).
#ifndef RINGD_COMMON_FUZZ_FUZZ_H_
#define RINGD_COMMON_FUZZ_FUZZ_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace ringd {

using FuzzBytes = std::vector<uint8_t>;

// Sound inputs to start from, made by the tests' own writers.
std::vector<FuzzBytes> FuzzSeeds();

// Ends the process: the input has broken what must hold.
inline void FuzzCheck(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

// Reads values one after the other; zeros follow the end.
class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : next_(data), end_(data + size) {}

  bool empty() const { return next_ == end_; }
  size_t size() const { return static_cast<size_t>(end_ - next_); }

  template <typename T>
  T Take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    Fill(&value, sizeof(value));
    return value;
  }
  void Fill(void* out, size_t bytes) {
    const size_t count = std::min(bytes, size());
    if (count > 0) std::memcpy(out, next_, count);
    next_ += count;
  }
  std::string TakeBytes(size_t at_most) {
    std::string bytes(std::min(at_most, size()), '\0');
    Fill(bytes.data(), bytes.size());
    return bytes;
  }

 private:
  const uint8_t* next_;
  const uint8_t* const end_;
};

// Writes what FuzzInput reads.
class FuzzWriter {
 public:
  template <typename T>
  FuzzWriter& Put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    return PutBytes(&value, sizeof(value));
  }
  FuzzWriter& PutBytes(const void* data, size_t bytes) {
    const auto* const from = static_cast<const uint8_t*>(data);
    bytes_.insert(bytes_.end(), from, from + bytes);
    return *this;
  }
  FuzzWriter& PutText(const std::string& text) { return PutBytes(text.data(), text.size()); }
  const FuzzBytes& bytes() const { return bytes_; }

 private:
  FuzzBytes bytes_;
};

}  // namespace ringd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

#endif  // RINGD_COMMON_FUZZ_FUZZ_H_
