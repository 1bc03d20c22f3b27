#include "scheduler/server/identity.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/crypto/crypto.h"
#include "common/status/macros.h"

namespace ringd::scheduler {
namespace {

using ringd::cluster::v1::Identity;

constexpr size_t kMinNonceBytes = 16;
constexpr size_t kMaxNonceBytes = 64;
constexpr size_t kMaxNameBytes = 256;
constexpr size_t kPasswdBytes = 16384;

bool IsCleanName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isgraph(static_cast<unsigned char>(c)) && c != '|';
         });
}

std::string UserName(uint32_t uid) {
  passwd entry;
  passwd* found = nullptr;
  std::vector<char> buffer(kPasswdBytes);
  if (getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr &&
      IsCleanName(found->pw_name)) {
    return found->pw_name;
  }
  return absl::StrCat(uid);
}

}  // namespace

std::string IdentityMessage(const Identity& identity) {
  return absl::StrCat("ringd-identity|", identity.user(), "|", identity.uid(), "|", identity.gid(),
                      "|", HexEncode(identity.nonce()), "|", identity.time_us(), "|",
                      identity.node());
}

absl::StatusOr<Caller> Identities::Identify(const PeerInfo& peer, const Identity& identity,
                                            absl::Time now) {
  Caller caller;
  if (peer.unix_socket) {
    caller.uid = peer.credentials.uid;
    caller.gid = peer.credentials.gid;
    caller.user = UserName(caller.uid);
  } else {
    RINGD_RETURN_IF_ERROR(Verify(identity, now));
    caller.uid = identity.uid();
    caller.gid = identity.gid();
    caller.user = identity.user();
  }
  caller.privileged = caller.uid == 0 || caller.uid == options_.own_uid;
  return caller;
}

absl::Status Identities::Verify(const Identity& identity, absl::Time now) {
  if (identity.user().empty() && identity.signature().empty()) {
    return absl::PermissionDeniedError(
        "no identity: over TCP a request is signed by the local daemon (is ringd running on this "
        "host?), or use the "
        "scheduler's Unix socket");
  }
  if (!IsCleanName(identity.user()) ||
      (!identity.node().empty() && !IsCleanName(identity.node()))) {
    return absl::PermissionDeniedError("the identity's user or node is no proper name");
  }
  if (options_.authority_pem.empty()) {
    if (options_.insecure) return absl::OkStatus();
    return absl::PermissionDeniedError(
        "this scheduler has no tls_authority to check an identity with: use its Unix socket, or "
        "set TLS up "
        "(`ringctl certs init`)");
  }
  const absl::Time signed_at = absl::FromUnixMicros(identity.time_us());
  if (signed_at < now - kIdentityWindow || signed_at > now + kIdentityWindow) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the identity was signed at ", absl::FormatTime(signed_at, absl::UTCTimeZone()), ", over ",
        absl::FormatDuration(kIdentityWindow), " from now: check this node's clock"));
  }
  if (identity.nonce().size() < kMinNonceBytes || identity.nonce().size() > kMaxNonceBytes) {
    return absl::PermissionDeniedError("the identity's nonce is not 16 to 64 bytes");
  }
  const absl::Status signature = VerifySignature(options_.authority_pem, identity.certificate(),
                                                 IdentityMessage(identity), identity.signature());
  if (!signature.ok()) {
    return absl::PermissionDeniedError(
        absl::StrCat("the identity does not hold: ", signature.message()));
  }
  RINGD_ASSIGN_OR_RETURN(const std::vector<std::string> uris,
                         CertificateUris(identity.certificate()));
  const std::string wanted = absl::StrCat("ringd://node/", identity.node());
  if (std::find(uris.begin(), uris.end(), wanted) == uris.end()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the identity is signed by a certificate that is not node ", identity.node(), "'s"));
  }
  return TakeNonce(identity.node(), identity.nonce(), now);
}

absl::Status Identities::TakeNonce(const std::string& node, const std::string& nonce,
                                   absl::Time now) {
  MutexLock lock(&mu_);
  while (!expiry_.empty() && expiry_.begin()->first < now) {
    nonces_.erase(expiry_.begin()->second);
    expiry_.erase(expiry_.begin());
  }
  if (nonces_.size() >= kMaxNonces) {
    return absl::ResourceExhaustedError(
        "too many signed requests within a minute; try again later");
  }
  const absl::Time until = now + 2 * kIdentityWindow;
  if (!nonces_.emplace(std::make_pair(node, nonce), until).second) {
    return absl::PermissionDeniedError(
        "this signed identity has been used already; sign each request anew");
  }
  expiry_.emplace(until, std::make_pair(node, nonce));
  return absl::OkStatus();
}

absl::Status Identities::CheckNode(const PeerInfo& peer, const std::string& node) const {
  if (peer.unix_socket) {
    if (peer.credentials.uid == 0 || peer.credentials.uid == options_.own_uid)
      return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat("a daemon of uid ", peer.credentials.uid,
                                                    " may not join a scheduler of uid ",
                                                    options_.own_uid));
  }
  if (options_.authority_pem.empty()) {
    if (options_.insecure) return absl::OkStatus();
    return absl::PermissionDeniedError(
        "over TCP nodes join with TLS: give scheduler and daemons certificates (`ringctl certs "
        "init`), or insecure");
  }
  const std::string wanted = absl::StrCat("ringd://node/", node);
  if (std::find(peer.uris.begin(), peer.uris.end(), wanted) != peer.uris.end())
    return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("this daemon calls itself node ", node, " but its certificate ",
                   peer.uris.empty() ? "names no node" : absl::StrCat("says ", peer.uris.front())));
}

}  // namespace ringd::scheduler
