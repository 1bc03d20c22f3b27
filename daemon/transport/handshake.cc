#include "daemon/transport/handshake.h"

#include <string.h>

#include "absl/strings/str_cat.h"
#include "common/crypto/crypto.h"

namespace ringd::daemon {
namespace {

constexpr char kAcceptLabel[] = "ringd-accept";
constexpr char kDialLabel[] = "ringd-dial";

std::string Mac(const std::string& key, const char* label, const wire::Hello& hello,
                const uint8_t (&nonce)[32]) {
  std::string message = label;
  message.append(reinterpret_cast<const char*>(&hello), sizeof(hello));
  message.append(reinterpret_cast<const char*>(nonce), sizeof(nonce));
  return HmacSha256(key, message);
}

bool SameMac(const std::string& expected, const uint8_t (&mac)[32]) {
  return ConstantTimeEqual(expected, std::string(reinterpret_cast<const char*>(mac), sizeof(mac)));
}

}  // namespace

wire::Hello MakeHello(const std::string& job, uint64_t generation, int from_node, int to_node,
                      uint16_t group) {
  wire::Hello hello{};
  hello.magic = wire::kMagic;
  hello.version = wire::kVersion;
  hello.group = group;
  memcpy(hello.job, job.data(), std::min(job.size(), sizeof(hello.job) - 1));
  hello.generation = generation;
  hello.from_node = static_cast<uint32_t>(from_node);
  hello.to_node = static_cast<uint32_t>(to_node);
  memcpy(hello.nonce, RandomBytes(sizeof(hello.nonce)).data(), sizeof(hello.nonce));
  return hello;
}

absl::Status CheckHello(const wire::Hello& hello) {
  if (hello.magic != wire::kMagic) {
    return absl::InvalidArgumentError("not a ringd data connection");
  }
  if (hello.version != wire::kVersion) {
    return absl::InvalidArgumentError(absl::StrCat("wire version ", hello.version,
                                                   ", this daemon has ", wire::kVersion,
                                                   "; run the same release of ringd on all nodes"));
  }
  const size_t job_bytes = strnlen(hello.job, sizeof(hello.job));
  if (job_bytes == 0 || job_bytes == sizeof(hello.job)) {
    return absl::InvalidArgumentError("malformed hello");
  }
  return absl::OkStatus();
}

std::string HelloJob(const wire::Hello& hello) {
  return std::string(hello.job, strnlen(hello.job, sizeof(hello.job)));
}

wire::Challenge MakeChallenge(const std::string& key, const wire::Hello& hello) {
  wire::Challenge challenge{};
  memcpy(challenge.nonce, RandomBytes(sizeof(challenge.nonce)).data(), sizeof(challenge.nonce));
  memcpy(challenge.mac, Mac(key, kAcceptLabel, hello, challenge.nonce).data(),
         sizeof(challenge.mac));
  return challenge;
}

bool CheckChallenge(const std::string& key, const wire::Hello& hello,
                    const wire::Challenge& challenge) {
  return SameMac(Mac(key, kAcceptLabel, hello, challenge.nonce), challenge.mac);
}

wire::Proof MakeProof(const std::string& key, const wire::Hello& hello,
                      const wire::Challenge& challenge) {
  wire::Proof proof{};
  memcpy(proof.mac, Mac(key, kDialLabel, hello, challenge.nonce).data(), sizeof(proof.mac));
  return proof;
}

bool CheckProof(const std::string& key, const wire::Hello& hello, const wire::Challenge& challenge,
                const wire::Proof& proof) {
  return SameMac(Mac(key, kDialLabel, hello, challenge.nonce), proof.mac);
}

}  // namespace ringd::daemon
