// Internal to common/rpc: TLS files and limits that client and server share.
#ifndef RINGD_COMMON_RPC_TLS_H_
#define RINGD_COMMON_RPC_TLS_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/rpc/rpc.h"

namespace ringd {

// A job's environment and a chunk of logs fit well.
inline constexpr int kMaxMessageBytes = 16 << 20;

struct TlsContent {
  std::string certificate, key, authority;
};
// INVALID_ARGUMENT: one of the three is missing or unreadable.
absl::StatusOr<TlsContent> ReadTlsFiles(const TlsFiles& files);

}  // namespace ringd

#endif  // RINGD_COMMON_RPC_TLS_H_
