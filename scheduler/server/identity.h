// Who calls: by the socket's credentials, or by an identity that a node's daemon has signed.
#ifndef RINGD_SCHEDULER_SERVER_IDENTITY_H_
#define RINGD_SCHEDULER_SERVER_IDENTITY_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/unix_socket.h"
#include "common/sync/mutex.h"
#include "proto/cluster.pb.h"
#include "scheduler/state/event.h"

namespace ringd::scheduler {

// A signed identity counts for this long before and after its time.
inline constexpr absl::Duration kIdentityWindow = absl::Seconds(60);
// Nonces kept within the window: 1,600 calls a second, 10 MB.
inline constexpr size_t kMaxNonces = 200000;

// What is known of a connection.
struct PeerInfo {
  bool unix_socket = false;
  PeerCredentials credentials;    // On a Unix socket.
  std::vector<std::string> uris;  // Of its certificate, over TLS.
};

// Thread-safe.
class Identities {
 public:
  struct Options {
    std::string authority_pem;  // Empty: no signature can be checked.
    bool insecure =
        false;  // Without an authority: take what the caller says (asked for by the operator).
    uint32_t own_uid = 0;  // It and root may act on everyone's jobs.
  };
  explicit Identities(Options options) : options_(std::move(options)) {}

  // PERMISSION_DENIED: no identity, or one that doesn't hold; the message says what to do.
  absl::StatusOr<Caller> Identify(const PeerInfo& peer,
                                  const ringd::cluster::v1::Identity& identity, absl::Time now);

  // Whether the daemon behind a connection may call itself `node`. PERMISSION_DENIED.
  absl::Status CheckNode(const PeerInfo& peer, const std::string& node) const;

 private:
  absl::Status Verify(const ringd::cluster::v1::Identity& identity, absl::Time now);
  absl::Status TakeNonce(const std::string& node, const std::string& nonce, absl::Time now);

  const Options options_;
  Mutex mu_;
  // (node, nonce) -> when it may be forgotten, and the same by time.
  std::map<std::pair<std::string, std::string>, absl::Time> nonces_ ABSL_GUARDED_BY(mu_);
  std::multimap<absl::Time, std::pair<std::string, std::string>> expiry_ ABSL_GUARDED_BY(mu_);
};

// What is signed: "ringd-identity|user|uid|gid|nonce hex|time_us|node".
std::string IdentityMessage(const ringd::cluster::v1::Identity& identity);

}  // namespace ringd::scheduler

#endif  // RINGD_SCHEDULER_SERVER_IDENTITY_H_
