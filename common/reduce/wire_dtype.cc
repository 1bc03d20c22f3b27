#include "common/reduce/wire_dtype.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "common/reduce/kernel_table.h"

namespace ringd {
namespace {

using reduce_internal::Conversion;
using reduce_internal::KernelTable;

// Of elements that aren't float32: converted by way of it, this many at a time.
constexpr size_t kChunk = 1024;
static_assert(kChunk % kWireBlock == 0);

bool IsFloat8(WireDType wire) {
  return wire == WireDType::kFloat8E4M3 || wire == WireDType::kFloat8E5M2;
}

// The 16-bit dtypes as what they are on the wire.
WireDType AsWire(DType dtype) {
  return dtype == DType::kFloat16 ? WireDType::kFloat16 : WireDType::kBFloat16;
}

Conversion Of(const Conversion (&conversions)[kWireDTypeCount], WireDType wire) {
  return conversions[static_cast<size_t>(wire)];
}

// Between a tensor's elements and float32.
class Elements {
 public:
  explicit Elements(DType dtype) : dtype_(dtype) {}

  void Read(const void* from, size_t count, float* to) const {
    if (dtype_ == DType::kFloat32) {
      std::memcpy(to, from, count * sizeof(float));
    } else {
      Of(reduce_internal::ActiveKernels().widen, AsWire(dtype_))(from, count, to);
    }
  }
  void Write(const float* from, size_t count, void* to) const {
    if (dtype_ == DType::kFloat32) {
      std::memcpy(to, from, count * sizeof(float));
    } else {
      Of(reduce_internal::ActiveKernels().narrow, AsWire(dtype_))(from, count, to);
    }
  }

 private:
  const DType dtype_;
};

void CheckOrAbort(DType dtype, WireDType wire) {
  if (wire == WireDType::kSame || !CanNarrow(dtype, wire)) std::abort();
}

}  // namespace

const char* WireDTypeName(WireDType wire) {
  constexpr const char* kNames[kWireDTypeCount] = {"same", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2"};
  const auto index = static_cast<size_t>(wire);
  return index < kWireDTypeCount ? kNames[index] : "invalid";
}

bool CanNarrow(DType dtype, WireDType wire) {
  if (DTypeBytes(dtype) == 0 || static_cast<int>(wire) >= kWireDTypeCount) return false;
  if (wire == WireDType::kSame || dtype == DType::kFloat32) return true;
  return IsFloat8(wire) && (dtype == DType::kFloat16 || dtype == DType::kBFloat16);
}

size_t WireBytes(DType dtype, WireDType wire, size_t count) {
  if (wire == WireDType::kSame) return count * DTypeBytes(dtype);
  return IsFloat8(wire) ? count + (count + kWireBlock - 1) / kWireBlock : 2 * count;
}

void NarrowToWire(DType dtype, WireDType wire, const void* from, size_t count, void* to) {
  CheckOrAbort(dtype, wire);
  const KernelTable& kernels = reduce_internal::ActiveKernels();
  const Conversion narrow = Of(kernels.narrow, wire);
  if (dtype == DType::kFloat32) return narrow(from, count, to);
  const Conversion widen = Of(kernels.widen, AsWire(dtype));
  const auto* source = static_cast<const uint8_t*>(from);
  auto* target = static_cast<uint8_t*>(to);
  alignas(64) float chunk[kChunk];
  for (size_t done = 0; done < count; done += kChunk) {
    const size_t some = std::min(kChunk, count - done);
    widen(source, some, chunk);
    narrow(chunk, some, target);
    source += some * DTypeBytes(dtype);
    target += WireBytes(dtype, wire, some);
  }
}

void WidenFromWire(DType dtype, WireDType wire, const void* from, size_t count, void* to) {
  CheckOrAbort(dtype, wire);
  const KernelTable& kernels = reduce_internal::ActiveKernels();
  const Conversion widen = Of(kernels.widen, wire);
  if (dtype == DType::kFloat32) return widen(from, count, to);
  const Conversion narrow = Of(kernels.narrow, AsWire(dtype));
  const auto* source = static_cast<const uint8_t*>(from);
  auto* target = static_cast<uint8_t*>(to);
  alignas(64) float chunk[kChunk];
  for (size_t done = 0; done < count; done += kChunk) {
    const size_t some = std::min(kChunk, count - done);
    widen(source, some, chunk);
    narrow(chunk, some, target);
    source += WireBytes(dtype, wire, some);
    target += some * DTypeBytes(dtype);
  }
}

void RoundToWire(DType dtype, WireDType wire, void* data, void* residual, size_t count) {
  CheckOrAbort(dtype, wire);
  const Elements elements(dtype);
  auto* data_bytes = static_cast<uint8_t*>(data);
  auto* residual_bytes = static_cast<uint8_t*>(residual);
  alignas(64) float wanted[kChunk];
  alignas(64) float rounded[kChunk];
  alignas(64) float lost[kChunk];
  uint8_t narrow[2 * kChunk];
  for (size_t done = 0; done < count; done += kChunk) {
    const size_t some = std::min(kChunk, count - done);
    elements.Read(data_bytes, some, wanted);
    elements.Read(residual_bytes, some, lost);
    for (size_t i = 0; i < some; ++i) wanted[i] += lost[i];
    NarrowToWire(DType::kFloat32, wire, wanted, some, narrow);
    WidenFromWire(DType::kFloat32, wire, narrow, some, rounded);
    elements.Write(rounded, some, data_bytes);
    elements.Read(data_bytes, some, rounded);
    for (size_t i = 0; i < some; ++i) {
      const float rest = wanted[i] - rounded[i];
      lost[i] = std::fabs(rest) <= std::numeric_limits<float>::max() ? rest : 0.0f;
    }
    elements.Write(lost, some, residual_bytes);
    data_bytes += some * DTypeBytes(dtype);
    residual_bytes += some * DTypeBytes(dtype);
  }
}

}  // namespace ringd
